"""Random lives of whole nodes whose publishers wait for the store, and whose machines are lost.

What was answered with `OK` has to be on the next machine, whatever else is lost with the last one. And what a reader of
history has seen has to be there at the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from nsqcommon.turn import Turn
from nsqd.ack_option import Ack
from nsqd.broker.store import RemoteSnapshot
from nsqd.log.remote import ConfirmedLog, Remote
from nsqd.log.topic_log import DiskLog
from tests.simulation.disk import Crash
from tests.simulation.plans import Plan
from tests.simulation.promise import Violation
from tests.simulation.remote.lost_machine import LosingSimulation, MirroredLife, Seen
from tests.simulation.simulation import Outcome, run

PLAN: Final = Plan(ack=Ack.REMOTE, crashes=(Crash.KILL,), fails=False)
SILENT: Final = "remote: the store doesn't answer"


class Copy:
    """What was recorded of one process's disk, as its log sees it."""

    def __init__(self, life: ConfirmedLife) -> None:
        self._life = life
        self._logs: dict[ConfirmedLog, None] = {}
        self._refusal: str | None = None
        self._refuses_until = 0
        self.is_behind = False

    @property
    def position(self) -> int:
        return len(self._life.changes)

    def refusal(self) -> str | None:
        return self._refusal

    def refusal_of_all(self) -> str | None:
        return None

    def holds_back(self, size: int) -> bool:
        return self.is_behind

    def log_written(self, log: ConfirmedLog, *, is_awaited: bool) -> None:
        self._logs[log] = None

    def log_dropped(self, log: ConfirmedLog) -> None:
        self._logs.pop(log, None)

    def follow(self, follower: Callable[[str], None]) -> None: ...

    def snapshot(self) -> RemoteSnapshot:
        raise NotImplementedError

    def begin(self) -> None: ...

    def hurry(self) -> None: ...

    async def run(self, turn: Turn) -> None: ...

    async def answer_publishers(self, turn: Turn) -> None: ...

    @property
    def is_lost(self) -> bool:
        return False

    def close(self) -> None: ...

    def confirm(self, position: int) -> None:
        for log in list(self._logs):
            log.confirm(position)
            if log.is_confirmed:
                del self._logs[log]
        if position >= self._refuses_until:
            self._refusal = None

    def fall_silent(self) -> None:
        """Let publishers have waited for too long."""
        for log in self._logs:
            log.fail_unconfirmed(f"{SILENT}; it may be stored")
        self._refusal, self._refuses_until = SILENT, self.position


class ConfirmedLife(MirroredLife):
    def __init__(self, random: Random, **settings: Any) -> None:
        super().__init__(random, **settings)
        self._copy = Copy(self)
        self._read: dict[str, int] = {}  # by log id: up to where history was shown
        self._needed: dict[str, int] = {}  # of the last machine, which was lost

    def remote_of_disk(self) -> Remote:
        self._copy = Copy(self)
        return self._copy

    def confirm(self) -> None:
        super().confirm()
        if self.machine is None:
            return
        with self.turn():
            self._copy.confirm(self.confirmed)
            self._copy.is_behind = self.random.random() < 0.1
            if self.random.random() < 0.05:
                self._copy.fall_silent()

    def drain(self) -> None:
        with self.turn():
            self.confirmed = len(self.changes)
            self._copy.confirm(self.confirmed)
            self._copy.is_behind = False
        super().drain()

    def _observe(self) -> None:
        super()._observe()
        for log in self.running.store.logs.values():
            if isinstance(log, DiskLog):
                self._read[log.log_id] = max(self._read.get(log.log_id, 0), log.readable_tail)

    def _go_back_to(self, seen: Seen) -> None:
        """Require what was answered as well."""
        answered = {topic.log_id: set(topic.acknowledged) for topic in self.ledger.topics.values()}
        super()._go_back_to(seen)
        self._needed = {}
        for topic in self.ledger.topics.values():
            topic.acknowledged = answered[topic.log_id]
            tail = max((it + 1 for it in topic.acknowledged), default=0)
            topic.written_tail = max(topic.written_tail, tail)
            self._needed[topic.log_id] = max(tail, self._read.get(topic.log_id, 0))

    def start(self, crash: Crash) -> None:
        super().start(crash)
        tails = {log.log_id: log.tail for log in self.running.store.disk_logs()}
        needed, self._needed = self._needed, {}
        for log_id, tail in needed.items():
            if tails.get(log_id, 0) < tail:
                raise Violation(f"log {log_id} ends at {tails.get(log_id)}, and {tail} was answered or read")


class ConfirmedSimulation(LosingSimulation):
    new_life = ConfirmedLife


def live_confirmed(seed: int, note: Callable[[str], None] | None = None) -> Outcome:
    return run(seed, PLAN, note, ConfirmedSimulation)
