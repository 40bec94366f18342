"""Jobs with an ETA, workers that are killed with -9 at random and started again, and a broker that is too.

The time is shortened: with ETAs over 24 minutes that stand for six hours, every time that a broker or a library has
for jobs that wait is divided by 15 (nsqd's longest delay, Redis' visibility timeout, RabbitMQ's consumer timeout). The
clocks of all processes are real: Erlang and asyncio wait in system calls that libfaketime does not steer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from bench.jobs.libraries import LIBRARIES, Command
from bench.jobs.servers import SERVERS
from bench.jobs.setup import Setup
from bench.servers import Process, Server
from bench.work import Failed
from tests.simulation.jobs.ledger import Verdict, judge, published, runs

WORKERS: Final = 2
BEGIN_LIMIT: Final = 120.0
STEP: Final = 0.02
_HOUR: Final = 3600.0
_SETTLED: Final = (
    1.0  # seconds that a worker has been able to work when it is killed: killing its start would be no test
)
_SCHEDULER_SETTLED: Final = 5.0  # seconds since its start, as it does not tell when it is ready
_BROKER_SETTLED: Final = 1.0
_LOOK: Final = 10.0  # seconds between two questions to the broker how much it still has

# How long a job may be in nobody's hands before the broker gives it to another worker, as a time of the broker.
_GIVES_UP: Final = {"redis": _HOUR, "redis-long": 7 * _HOUR, "rabbitmq": _HOUR / 2, "rabbitmq-classic": _HOUR / 2}
_PATIENCE: Final = 60.0  # beyond that

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    library: str
    broker: str
    tasks: int
    span: float  # seconds that the ETAs stand for
    within: float  # seconds that they take
    kills: int
    broker_kills: int
    seed: int
    patience: float = _PATIENCE

    @property
    def speed(self) -> float:
        return self.span / self.within


@dataclass(slots=True)
class Outcome:
    verdict: Verdict
    kills: int
    broker_kills: int
    deaths: int  # of workers that nobody killed
    left: int  # jobs that the broker still holds
    seconds: float

    @property
    def lost(self) -> int:
        """Return how many jobs have not run and are not in the broker either."""
        return max(0, self.verdict.not_run - self.left)

    @property
    def stuck(self) -> int:
        return self.verdict.not_run - self.lost

    @property
    def repeats_per_kill(self) -> float:
        return self.verdict.repeated / max(1, self.kills + self.broker_kills)

    def __str__(self) -> str:
        it = self.verdict
        return (
            f"{it.published:,} jobs, {self.kills} kills of workers, {self.broker_kills} of the broker: {self.lost} lost, "
            f"{self.stuck} left in the broker, {it.early} early, {it.repeated:,} repeated ({self.repeats_per_kill:.2f} a kill, one job ran at most "
            f"{it.most_runs} times), late p50 {it.late_p50:.3f} s, p99 {it.late_p99:.2f} s, most {it.late_most:.1f} s"
        )


def run(folder: Path, plan: Plan, say: Say, python: Sequence[str] = (sys.executable,)) -> Outcome:
    """Raise Failed if it cannot be carried out."""
    began = time.monotonic()
    out = folder / "out"
    out.mkdir(parents=True)
    with SERVERS[plan.broker](folder / "broker", speed=plan.speed, python=python) as server:
        setup = Setup(plan.broker, server.url, str(out), plan.speed)
        life = _Life(folder, plan, server, setup, say)
        try:
            life.run()
        finally:
            life.close()
    return Outcome(
        judge(published(out), runs(out)),
        life.kills,
        life.broker_kills,
        life.deaths,
        life.left,
        time.monotonic() - began,
    )


class _Life:
    def __init__(self, folder: Path, plan: Plan, server: Server, setup: Setup, say: Say) -> None:
        self.kills = self.broker_kills = self.deaths = self.left = 0
        self._folder = folder
        self._out = Path(setup.folder)
        self._plan = plan
        self._server = server
        self._server_up = time.monotonic()  # since when it answers; infinity: it does not
        self._setup = setup
        self._say = say
        self._chance = Random(plan.seed)
        library = LIBRARIES[plan.library]
        self._commands: dict[str, Command] = {
            f"worker{number}": library.worker(setup, number) for number in range(WORKERS)
        }
        if (scheduler := library.scheduler(setup)) is not None:
            self._commands["scheduler"] = scheduler
        self._workers = {name: self._start(name) for name in self._commands}
        self._publisher = Process(
            [
                *(sys.executable, "-m", "bench.jobs.publish_etas", library.app),
                *(str(plan.tasks), str(plan.within), str(plan.seed)),
            ],
            folder / "publisher.txt",
            setup.environ,
        )

    def run(self) -> None:
        began = self._wait_for_begin()
        end = began + self._plan.within
        kills = self._times(began, end, self._plan.kills)
        broker_kills = self._times(began, end, self._plan.broker_kills)
        said = began
        # A slow machine may need longer for the kills. They make sense as long as there are jobs.
        while (now := time.time()) < end or ((kills or broker_kills) and self._missing()):
            self._keep_up()
            if kills and kills[0] <= now and self._kill_worker():
                kills.pop(0)
            if broker_kills and broker_kills[0] <= now and self._kill_broker():
                broker_kills.pop(0)
            if now > said + 30:
                said = now
                self._say(f"{now - began:.0f} s of {self._plan.within:.0f}: {self._progress()}")
            time.sleep(STEP)
        self._wait_for_the_rest()

    def close(self) -> None:
        for process in (*self._workers.values(), self._publisher):
            process.kill()

    # What dies is started again

    def _start(self, name: str) -> Process:
        process = Process(self._commands[name], self._folder / f"{name}.txt", self._setup.environ)
        (self._out / f"ready-{process.pid}").unlink(missing_ok=True)  # of an earlier process with this id
        return process

    def _keep_up(self) -> None:
        for name, process in self._workers.items():
            if process.status is not None:
                self.deaths += 1
                process.kill()  # what is left of its session
                self._workers[name] = self._start(name)
                self._note(f"{name} ended itself")
        if self._server_up == float("inf") and self._server.is_ready:
            self._server_up = time.monotonic()
            self._note("broker answers")

    def _note(self, what: str) -> None:
        """Keep what happened when, for the one who looks into a run that went wrong."""
        with (self._folder / "events.txt").open("a") as file:
            file.write(f"{time.time():.3f} {what}\n")

    def _kill_worker(self) -> bool:
        old = [name for name in self._workers if self._is_settled(name)]
        if not old:
            return False
        name = self._chance.choice(old)
        self._workers[name].kill()
        self._workers[name] = self._start(name)
        self.kills += 1
        self._note(f"kill {name}")
        return True

    def _is_settled(self, name: str) -> bool:
        process = self._workers[name]
        if name == "scheduler":
            return time.monotonic() - process.began > _SCHEDULER_SETTLED
        try:
            return time.time() - (self._out / f"ready-{process.pid}").stat().st_mtime > _SETTLED
        except FileNotFoundError:
            return False

    def _kill_broker(self) -> bool:
        if time.monotonic() - self._server_up < _BROKER_SETTLED:
            return False
        self._server.kill()
        self._server.launch()
        self._server_up = float("inf")
        self.broker_kills += 1
        self._note("kill broker")
        return True

    def _times(self, began: float, end: float, count: int) -> list[float]:
        return sorted(self._chance.uniform(began, end) for _ in range(count))

    # The beginning and the end

    def _wait_for_begin(self) -> float:
        limit = time.monotonic() + BEGIN_LIMIT
        while not (path := self._out / "began").exists():
            self._keep_up()
            if time.monotonic() > limit or self._publisher.status is not None:
                raise Failed(f"no job has run\n{self._logs()}")
            time.sleep(STEP)
        return float(path.read_text())

    def _wait_for_the_rest(self) -> None:
        """Return when all jobs have run and the broker has none left, or when nothing has happened for long."""
        patience = self._plan.patience + self._setup.scaled(_GIVES_UP.get(self._plan.broker, 0))
        seen, last, looked = -1, time.monotonic(), 0.0
        while time.monotonic() < last + patience:
            self._keep_up()
            if (noted := self._noted()) != seen:
                seen, last = noted, time.monotonic()
            is_over = self._publisher.status is not None and not self._missing()
            if is_over and self._server_up < time.monotonic() - _BROKER_SETTLED:
                if time.monotonic() > looked + _LOOK:
                    self.left = self._server.left()
                    looked = time.monotonic()
                if not self.left:
                    return
            time.sleep(10 * STEP)
        if self._publisher.status is None:
            raise Failed(f"the publisher does not end\n{self._logs()}")
        self.left = self._server.left()

    def _missing(self) -> int:
        return len(published(self._out).keys() - runs(self._out).keys())

    def _noted(self) -> int:
        return sum(path.stat().st_size for path in self._out.glob("ran-*"))

    def _progress(self) -> str:
        jobs, ran = published(self._out), runs(self._out)
        due = sum(job.due < time.time() for job in jobs.values())
        repeated = sum(map(len, ran.values())) - len(ran)
        return (
            f"{len(jobs):,} published, {due:,} due, {len(ran):,} ran, {repeated:,} again; "
            f"{self.kills} kills of workers, {self.broker_kills} of the broker, {self.deaths} deaths"
        )

    def _logs(self) -> str:
        names = ("publisher", *self._commands)
        texts = ((self._folder / f"{name}.txt").read_text(errors="replace").splitlines()[-15:] for name in names)
        return "\n".join(line for name, text in zip(names, texts, strict=True) for line in (f"{name}:", *text))
