"""Jobs a second: from one process into the broker, from the broker through one worker, and both at the same time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.jobs.libraries import RATED
from bench.jobs.postgres import Postgres
from bench.jobs.servers import SERVERS
from bench.jobs.setup import Setup
from bench.servers import Process, Server
from bench.sessions import processor_seconds
from bench.work import ROOT, Failed, Work

BROKERS: Final[Mapping[str, type[Server]]] = {**SERVERS, "postgres": Postgres}
LIMIT: Final = 300.0  # seconds that each part may take
_POLL: Final = 0.01
_CELERYS_AHEAD: Final = 4  # its default

MEASURED: Final = ("enqueue", "work off", "end to end")


@dataclass(frozen=True, slots=True)
class Rate:
    """One measurement."""

    jobs_per_s: float
    processor: dict[str, float]  # microseconds a job, by who took them


Rates = dict[str, Rate]  # by what was measured


@dataclass(frozen=True, slots=True)
class Stage:
    """One broker and one library."""

    library: str
    server: Server
    database: Server | None  # besides the broker
    setup: Setup
    folder: Path

    @contextmanager
    def worker(self) -> Iterator[Process]:
        command = RATED[self.library].worker(self.setup, 0)
        process = Process(command, self.folder / "worker.txt", self.setup.environ)
        try:
            yield process
        finally:
            process.kill()

    def broker_seconds(self) -> float:
        """Return the processor time of the broker, and of the database if there is one."""
        servers = [self.server, *([self.database] if self.database is not None else [])]
        return sum(processor_seconds(server.pid) for server in servers)

    def publish(self, count: int) -> tuple[float, float, float]:
        """Publish so many jobs, and return when that began and ended, and the processor time that it took."""
        done = subprocess.run(
            [sys.executable, "-m", "bench.jobs.publish_many", RATED[self.library].app, str(count)],
            cwd=ROOT,
            env=self.setup.whole_environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        if done.returncode:
            raise Failed(f"{self.library} cannot publish: {done.stderr}")
        began, ended, used = map(float, done.stdout.split())
        return began, ended, used

    def wait_until(self, reached: Callable[[int], bool]) -> tuple[int, float]:
        """Return how many jobs the broker has, and the time, once that is so."""
        end = time.monotonic() + LIMIT
        while not reached(left := self.server.left()):
            if time.monotonic() > end:
                text = (self.folder / "worker.txt").read_text(errors="replace")[-2000:]
                raise Failed(f"{self.library}: {left} jobs are still there after {LIMIT:.0f} s\n{text}")
            time.sleep(_POLL)
        return left, time.time()


@contextmanager
def staged(work: Work, library: str, broker: str, python: Sequence[str]) -> Iterator[Stage]:
    with work.new_folder(f"{library}-{broker}") as folder:
        (folder / "out").mkdir()
        with ExitStack() as stack:
            server = stack.enter_context(BROKERS[broker](folder / "broker", python=python))
            needs_another = RATED[library].needs_database and not isinstance(server, Postgres)
            database = stack.enter_context(Postgres(folder / "database")) if needs_another else None
            setup = Setup(
                broker,
                server.url,
                str(folder / "out"),
                concurrency=RATED[library].usual,
                ahead=_CELERYS_AHEAD,
                database=(database or server).url,
            )
            yield Stage(library, server, database, setup, folder)


def measure(work: Work, library: str, broker: str, count: int, python: Sequence[str]) -> Rates:
    with staged(work, library, broker, python) as stage:
        rates = {"enqueue": _enqueue(stage, count)}
        with stage.worker() as worker:
            rates["work off"] = _work_off(stage, worker, count)
            rates["end to end"] = _end_to_end(stage, worker, count)
    return rates


def _enqueue(stage: Stage, count: int) -> Rate:
    before = stage.broker_seconds()
    began, ended, used = stage.publish(count)
    in_broker = stage.broker_seconds() - before
    return _rate(count, ended - began, publisher=used, broker=in_broker)


def _work_off(stage: Stage, worker: Process, count: int) -> Rate:
    # The worker's start is not its rate: count from when it has some behind it.
    some = count - count // 10
    first, began = stage.wait_until(lambda left: left <= some)
    if not first:
        raise Failed(f"{stage.library}: all {count} jobs were done at the first look; take more of them (--jobs)")
    before = stage.broker_seconds(), processor_seconds(worker.pid)
    _, ended = stage.wait_until(lambda left: left == 0)
    after = stage.broker_seconds(), processor_seconds(worker.pid)
    return _rate(first, ended - began, worker=after[1] - before[1], broker=after[0] - before[0])


def _end_to_end(stage: Stage, worker: Process, count: int) -> Rate:
    before = stage.broker_seconds(), processor_seconds(worker.pid)
    began, _, used = stage.publish(count)
    _, ended = stage.wait_until(lambda left: left == 0)
    after = stage.broker_seconds(), processor_seconds(worker.pid)
    return _rate(count, ended - began, publisher=used, worker=after[1] - before[1], broker=after[0] - before[0])


def _rate(count: int, seconds: float, **processor: float) -> Rate:
    return Rate(count / seconds, {who: 1e6 * used / count for who, used in processor.items()})
