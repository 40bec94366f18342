"""Machines that are lost under load, and others that go on with the node: `python -m tests.e2e.failovers`.

nsqd has a copy in a shared folder, and topics wait for it. In each life publishers note every OK, and a consumer finishes
or requeues what it gets. Then the process is killed, and most of the times its disk is wiped. In the end every message
that was answered with OK must have arrived.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from nsqcommon.startup import TakenOver
from nsqcommon.wire.commands import dpub, fin, mpub, pub, req
from tests.support.client import Client, Disconnected, Refused
from tests.support.lengths import sized
from tests.support.process import Nsqd

LIVES: Final = sized(short=3, long=60)
TOPICS: Final = ("orders", "bills")
CHANNEL: Final = "c"
PUBLISHERS: Final = 3
LONGEST_DELAY: Final = 300  # ms
PATIENCE: Final = 60.0  # seconds
_BROKEN: Final = (Disconnected, ConnectionError, TimeoutError)


class Loss(StrEnum):
    """How a life ends."""

    WIPED = "killed, and the disk was wiped"
    ELSEWHERE = "killed, and a machine without its disk goes on"
    BACK = "killed, and the machine that was lost before goes on with its old disk"
    KILLED = "killed, and goes on with its disk"
    STOPPED = "stopped, and a machine without its disk goes on"
    FROZEN = "frozen, and thawed when another machine goes on"


_WEIGHTS: Final = {Loss.WIPED: 5, Loss.ELSEWHERE: 2, Loss.BACK: 2, Loss.KILLED: 2, Loss.STOPPED: 1, Loss.FROZEN: 2}


class Violation(Exception):
    """A promise was broken."""


@dataclass
class Ledger:
    """What publishers were told, and what has arrived."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: int = 0
    acknowledged: dict[int, str] = field(default_factory=dict)  # by number: the topic
    due: dict[int, float] = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    ids: dict[bytes, int] = field(default_factory=dict)
    deliveries: int = 0

    def new_numbers(self, count: int, delay: float) -> list[int]:
        with self.lock:
            numbers = list(range(self.sent, self.sent + count))
            self.sent += count
            self.due |= dict.fromkeys(numbers, time.monotonic() + delay)
            return numbers

    def acknowledge(self, topic: str, numbers: list[int]) -> None:
        with self.lock:
            self.acknowledged |= dict.fromkeys(numbers, topic)

    def arrive(self, number: int, message_id: bytes) -> None:
        with self.lock:
            self.deliveries += 1
            if self.ids.setdefault(message_id, number) != number:
                raise Violation(f"messages {number} and {self.ids[message_id]} have the same id")
            if time.monotonic() < self.due[number]:
                raise Violation(f"message {number} came early")
            self.arrived.add(number)

    @property
    def missing(self) -> list[int]:
        with self.lock:
            return sorted(self.acknowledged.keys() - self.arrived)


@dataclass
class Outcome:
    ledger: Ledger
    losses: dict[Loss, int]
    pauses: list[float]  # from the end of each life to the first OK of the next, in seconds


class Load:
    """Publishers and consumers of one life. They end when nsqd does."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, chance: random.Random) -> None:
        self._nsqd = nsqd
        self._ledger = ledger
        self._violations: list[Exception] = []
        self.first_ok: float | None = None
        jobs: list[Callable[[random.Random], None]] = [self._publish] * PUBLISHERS
        jobs += [partial(self._consume, topic) for topic in TOPICS]
        self._threads = [
            threading.Thread(target=self._guarded, args=(job, random.Random(chance.random())), daemon=True)
            for job in jobs
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, job: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            job(chance)
        except _BROKEN:
            pass
        except Exception as error:
            self._violations.append(error)

    def ended(self) -> None:
        """Wait until all have noticed that nsqd is gone. Raise what went wrong."""
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a client hasn't noticed that nsqd is gone"
        self.raise_violation()

    def raise_violation(self) -> None:
        if self._violations:
            raise self._violations[0]

    def _publish(self, chance: random.Random) -> None:
        with Client(self._nsqd.tcp) as client:
            while True:
                topic = chance.choice(TOPICS)
                kind = chance.choice(("PUB", "PUB", "MPUB", "DPUB"))
                delay = chance.randrange(LONGEST_DELAY) if kind == "DPUB" else 0
                numbers = self._ledger.new_numbers(chance.randint(2, 10) if kind == "MPUB" else 1, delay / 1000)
                bodies = [b"%d %b" % (number, b"." * chance.choice((0, 100, 3000))) for number in numbers]
                if kind == "DPUB":
                    command = dpub(topic, delay, bodies[0])
                else:
                    command = mpub(topic, bodies) if kind == "MPUB" else pub(topic, bodies[0])
                try:
                    assert client.ask(command) == b"OK"
                except Refused as refusal:  # it may be stored; and it is over
                    raise Disconnected from refusal
                self._ledger.acknowledge(topic, numbers)
                if self.first_ok is None:
                    self.first_ok = time.monotonic()

    def _consume(self, topic: str, chance: random.Random) -> None:
        with Client(self._nsqd.tcp) as client:
            client.subscribe(topic, CHANNEL, ready=chance.choice((1, 50, 500)))
            while True:
                message = client.message(PATIENCE)
                self._ledger.arrive(int(message.body.split()[0]), message.id)
                if chance.random() < 0.9:
                    client.send(fin(message.id))
                else:
                    client.send(req(message.id, chance.randrange(LONGEST_DELAY)))


def run(
    folder: Path,
    *,
    lives: int,
    seed: int,
    options: tuple[str, ...] = (),
    store: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Outcome:
    """Lose machines under load. Raise AssertionError with the seed and the log if a promise was broken.

    `store`: the options that name the store; by default, it is a shared folder.
    """
    chance = random.Random(seed)
    ledger, losses, pauses = Ledger(), dict.fromkeys(Loss, 0), list[float]()
    (folder / "store").mkdir()
    store = store or (f"remote=file://{folder}/store", "remote-interval=2ms")
    options = (*store, "remote-name=node", "ack=remote", "take-over", *options)
    machines, current = [folder / "machine-0"], 0
    nsqd = Nsqd(machines[current], *options, environ=environ)
    ended_at = time.monotonic()
    running = ExitStack()
    running.callback(nsqd.kill)
    try:
        nsqd.start()
        for topic in TOPICS:
            nsqd.post(f"/topic/create?topic={topic}")
            nsqd.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
        for life in range(lives):
            load = Load(nsqd, ledger, chance)
            _go_on(load, ledger, chance.randint(1, 400))
            if life:
                assert load.first_ok is not None
                pauses.append(load.first_ok - ended_at)
            loss = chance.choices([*_WEIGHTS], [*_WEIGHTS.values()])[0]
            losses[loss] += 1
            ended_at = time.monotonic()
            before, current = nsqd, _end(loss, nsqd, machines, current, chance)
            nsqd = Nsqd(machines[current], *options, environ=environ)
            running.callback(nsqd.kill)
            nsqd.start()
            if loss is Loss.FROZEN:
                _thaw(before)
            load.ended()
        _receive_all(nsqd, ledger)
    except Exception as error:
        raise AssertionError(f"{nsqd.log}\n\nseed {seed}: {type(error).__name__} {error}") from error
    finally:
        running.close()
    return Outcome(ledger, losses, pauses)


def _go_on(load: Load, ledger: Ledger, count: int) -> None:
    """Wait until so many more messages are acknowledged."""
    goal, deadline = len(ledger.acknowledged) + count, time.monotonic() + PATIENCE
    while len(ledger.acknowledged) < goal:
        load.raise_violation()
        assert time.monotonic() < deadline, "the load has come to a standstill"
        time.sleep(0.002)


def _end(loss: Loss, nsqd: Nsqd, machines: list[Path], current: int, chance: random.Random) -> int:
    """End a life, and return on which machine the next one begins."""
    match loss:
        case Loss.FROZEN:
            nsqd.send_signal(signal.SIGSTOP)
        case Loss.STOPPED:
            assert nsqd.stop() == 0, nsqd.log
        case _:
            nsqd.kill()
    match loss:
        case Loss.WIPED:
            shutil.rmtree(machines[current])
        case Loss.ELSEWHERE | Loss.STOPPED | Loss.FROZEN:
            machines.append(machines[current].with_name(f"machine-{len(machines)}"))
            return len(machines) - 1
        case Loss.BACK:
            return chance.randrange(len(machines))
        case Loss.KILLED:
            pass
    return current


def _thaw(zombie: Nsqd) -> None:
    """Let a process go on whose node is another's by now. It finds out, answers no publisher OK, and ends."""
    zombie.send_signal(signal.SIGCONT)
    status = zombie.wait()
    if status != TakenOver.exit_status:
        raise Violation(f"the former owner ended with status {status}\n{zombie.log}")


def _receive_all(nsqd: Nsqd, ledger: Ledger) -> None:
    """Wait until every acknowledged message has arrived."""
    deadline = time.monotonic() + PATIENCE
    for topic in TOPICS:
        with Client(nsqd.tcp) as client:
            client.subscribe(topic, CHANNEL, ready=500)
            while missing := [it for it in ledger.missing if ledger.acknowledged[it] == topic]:
                try:
                    message = client.message(max(0.0, deadline - time.monotonic()))
                except TimeoutError:
                    raise Violation(f"{len(missing)} messages of {topic} are lost, such as {missing[:5]}") from None
                ledger.arrive(int(message.body.split()[0]), message.id)
                client.send(fin(message.id))


@contextmanager
def _store_at(folder: Path, *, is_s3: bool) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
    """Yield the options that name the store, and the environment with its credentials."""
    if not is_s3:
        yield (), {}
        return
    from tests.support.s3 import BUCKET, SECRET, S3Server  # imported here, because it needs moto

    with S3Server(folder) as server:
        yield (
            (f"remote=s3://{BUCKET}/nsq", f"remote-option=endpoint={server.endpoint}", "remote-interval=5ms"),
            {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"},
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.failovers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--count", type=int, default=1000, help="lives")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--s3", action="store_true", help="with moto's S3 server instead of a shared folder")
    parser.add_argument("options", nargs="*", help="options of nsqd without dashes, as max-bytes-per-file=65536")
    arguments = parser.parse_args()
    sys.stdout.write(f"seed {arguments.seed}\n")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with _store_at(Path(folder), is_s3=arguments.s3) as (store, environ):
            outcome = run(
                Path(folder),
                lives=arguments.count,
                seed=arguments.seed,
                options=tuple(arguments.options),
                store=store,
                environ=environ,
            )
    ledger = outcome.ledger
    sys.stdout.write(
        f"{arguments.count} lives in {time.monotonic() - began:.0f} s: {len(ledger.acknowledged)} messages acknowledged, "
        f"{ledger.deliveries} deliveries; none lost\n"
    )
    sys.stdout.writelines(f"{count:6} {loss}\n" for loss, count in outcome.losses.items())
    sys.stdout.write(f"the next OK after {median(outcome.pauses):.2f} s, at most {max(outcome.pauses):.2f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
