"""kill -9 of a real nsqd in the middle of a load, again and again: the loop of bury_kills, edit_kills and group_kills.

Each of them has a `KillRun`. It says which load goes on until a kill, how much of it comes before one, and what has to hold
after each start and at the end.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from nsqcommon.wire.message import Message
from tests.simulation.promise import Violation
from tests.support.process import Nsqd
from tests.support.traffic import Consumer, Tasks

TOPIC: Final = "t"
UNTIL_FOUND: Final = 100  # kills of a run that ends where a planted bug shows, which seldom needs more than three
_SHORT_SEGMENTS: Final = "max-bytes-per-file=65536"  # so that they go, and what isn't finished is compacted
_BUSY_TIMEOUT: Final = 120.0
_PAUSE: Final = 0.001  # seconds between two looks at how far a load has come; an edit takes hardly longer
_LOG_LINES: Final = 60


class Ledger(Protocol):
    """Knows where messages may be."""

    def ended(self, killed_at: float) -> None:
        """Note that nsqd was killed. All connections have ended."""


class Load:
    """Threads that go on until their connections break."""

    def __init__(
        self,
        tasks: Iterable[Callable[[random.Random], None]],
        chance: random.Random,
        progress: Callable[[], int],
        is_ready: Callable[[int], bool] = lambda count: True,
    ) -> None:
        """`progress` counts what the load does. `is_ready` tells if a kill may come, which then comes after so much more."""
        self._progress = progress
        self._is_ready = is_ready
        self._tasks = Tasks(tasks, chance)
        self.stopping = self._tasks.stopping
        self._tasks.start()

    def go_on_for(self, count: int) -> None:
        """Let it go on until it is ready and has then done so much, or something is wrong, which `ended` raises."""
        self._go_on_until(lambda: self._is_ready(count))
        goal = self._progress() + count
        self._go_on_until(lambda: self._progress() >= goal)

    def _go_on_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _BUSY_TIMEOUT
        while not (self._tasks.violations or is_so()):
            assert time.monotonic() < deadline, f"the load has come to a standstill; broken: {self._tasks.broken}"
            self.stopping.wait(_PAUSE)

    def ended(self) -> None:
        self._tasks.ended()


class KillRun(ABC):
    """One nsqd that is killed so often, with all that its clients know. Its text says what was done."""

    channels: tuple[str, ...]  # of TOPIC
    early: range  # how far a load may have come before an early kill; every third one is early
    late: range

    def __init__(self) -> None:
        self.kills = 0

    def options(self, folder: Path) -> Sequence[str]:
        """Return nsqd's options. What they refer to is in this folder."""
        return ()

    @abstractmethod
    def ledgers(self) -> Sequence[Ledger]: ...

    @abstractmethod
    def load(self, nsqd: Nsqd, chance: random.Random) -> Load:
        """Begin a load."""

    @abstractmethod
    def check_start(self, nsqd: Nsqd, chance: random.Random) -> None:
        """Raise Violation if something is wrong after the start that follows a kill."""

    @abstractmethod
    def check_end(self, nsqd: Nsqd) -> None:
        """Raise Violation if something is wrong or missing at the end."""

    def run(
        self,
        folder: Path,
        *,
        kills: int,
        seed: int,
        environ: Mapping[str, str] | None = None,
        after_kill: Callable[[], None] = lambda: None,
    ) -> None:
        """Kill nsqd so often. Raise AssertionError, with the seed and the log, if something is wrong."""
        chance = random.Random(seed)
        with Nsqd(folder / "data", _SHORT_SEGMENTS, *self.options(folder), environ=environ) as nsqd:
            try:
                nsqd.post(f"/topic/create?topic={TOPIC}")
                for name in self.channels:
                    nsqd.post(f"/channel/create?topic={TOPIC}&channel={name}")
                for number in range(kills):
                    self._kill_once(nsqd, chance, self.early if number % 3 == 2 else self.late)
                    after_kill()
                self.check_end(nsqd)
            except Exception as error:
                log = "\n".join(nsqd.log.splitlines()[-_LOG_LINES:])
                raise AssertionError(f"{log}\n\nkill {self.kills}, seed {seed}: {error!r}") from error

    def _kill_once(self, nsqd: Nsqd, chance: random.Random, before: range) -> None:
        load = self.load(nsqd, chance)
        load.go_on_for(chance.choice(before))
        killed_at = time.monotonic()
        nsqd.kill()
        load.ended()
        for ledger in self.ledgers():
            ledger.ended(killed_at)
        self.kills += 1
        nsqd.start()
        self.check_start(nsqd, chance)


# Consuming


def consumer(nsqd: Nsqd, channel: str, *, ready: int, msg_timeout: int) -> Consumer:
    """Return a consumer of a channel that may bury messages. `msg_timeout` is in milliseconds."""
    client = Consumer(nsqd.tcp)
    try:
        client.identify(feature_negotiation=True, extensions=["bury"], msg_timeout=msg_timeout)
        client.subscribe(TOPIC, channel, ready=ready)
    except BaseException:
        client.close()
        raise
    return client


def unread(client: Consumer, most: int = 1_000_000) -> list[Message]:
    """Return messages that have come already."""
    found: list[Message] = []
    while len(found) < most and (message := client.kept_message()) is not None:
        found.append(message)
    return found


# The end


def drain(nsqd: Nsqd, name: str, client: Consumer, finish: Callable[[Message], None]) -> None:
    """Consume until the channel has nothing left. `finish` finishes a message."""
    deadline = time.monotonic() + _BUSY_TIMEOUT
    while True:
        try:
            message = client.message(0.05)
        except TimeoutError:
            client.in_step()
            left = nsqd.channel(TOPIC, name)
            if not any(left[count] for count in ("depth", "in_flight_count", "deferred_count")):
                return
            if time.monotonic() > deadline:
                raise Violation(f"{name} does not run dry: {left}") from None
        else:
            finish(message)


def check_nothing_comes_back(nsqd: Nsqd, channels: Iterable[str]) -> None:
    """Restart nsqd, whose channels are drained, and check that they still are."""
    nsqd.restart()
    for name in channels:
        if (shown := nsqd.channel(TOPIC, name))["depth"]:
            raise Violation(f"finished messages came back: {shown}")
