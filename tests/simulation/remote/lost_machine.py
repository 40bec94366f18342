"""Random lives of whole nodes whose machines are lost, and go on elsewhere with what was recorded of their disks.

The same broker, log, clients and ledger as in `simulation.py`. A machine may be lost at any moment, with its disk. The
next one gets the files as of some place in the recorded changes, wherever the chain may have ended. Nothing that was
written up to there may be missing, and nothing that recovery finds may surprise it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from nsqd.log.data_path import NodeFile, read_node, write_node
from nsqd.log.files import Files
from nsqd.remote.recorder import Recorded, RecordedFiles
from tests.simulation.disk import DATA_PATH, Crash, SimulatedDisk
from tests.simulation.life import Life
from tests.simulation.models import TopicModel
from tests.simulation.plans import Plan
from tests.simulation.promise import Marks, Violation
from tests.simulation.remote.mirror import Mirror, fill, shipped_files
from tests.simulation.simulation import Outcome, Simulation, run

IDS_AHEAD: Final = (
    1 << 26
)  # by which a new owner's message ids are moved on, because renewals may not have been shipped
EXPECTED: Final = ("topology.json is missing", "torn")  # what a start may report: the store has that in roots only
LOSSES: Final = Plan(crashes=(Crash.KILL,), fails=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the ledger knew to be written when this number of changes was recorded."""

    position: int
    marks: Marks
    tails: dict[str, int]  # by log id


class MirroredLife(Life):
    """A life in which everything that the log does to its disk is recorded."""

    def __init__(self, random: Random, **settings: Any) -> None:
        super().__init__(random, **settings)
        self.changes: list[Recorded] = []
        self.confirmed = 0  # of the changes
        self.mirror = Mirror({})
        self._seen: list[Seen] = []
        self._was_lost = False  # and the next start is on another machine

    def files_of_disk(self) -> Files:
        """Begin to record. The files that are on the disk now are in a root, which the next owner would begin with."""
        self.mirror = Mirror(shipped_files(self.disk))
        self.changes, self.confirmed = [], 0
        self._seen = [self._what_is_written()]
        return RecordedFiles(self.disk, DATA_PATH, self.changes.append)

    def confirm(self) -> None:
        """Let the chain confirm some of what was recorded."""
        self.confirmed = self.random.randint(self.confirmed, len(self.changes))

    def lose_machine(self) -> None:
        """Lose machine and disk. The next start finds, on another one, what some prefix of the changes gives."""
        end = self.random.choice(
            (self.confirmed, len(self.changes), self.random.randint(self.confirmed, len(self.changes)))
        )
        end = max(end, self.recovered)
        self.note(f"the machine is lost: {end} of {len(self.changes)} changes are in the chain")
        self.crash(Crash.KILL)
        before, self.disk = self.disk, SimulatedDisk(random=self.random)
        self.disk.uncached, self.disk.most_per_write = before.uncached, before.most_per_write
        self.disk.on_call = before.on_call
        files, folders = self.mirror.files_after(self.changes[:end], self.random)
        fill(self.disk, files, folders)
        self._move_ids_on()
        self._was_lost = True
        self._failed_syncs = 0
        self._go_back_to(self.seen_at(end))

    @property
    def recovered(self) -> int:
        """How many changes the recovery has made. The chain has all of them or none, as it begins with one slot."""
        return self._seen[1].position if len(self._seen) > 1 else len(self.changes)

    def seen_at(self, position: int) -> Seen:
        """Return what was written for certain when this number of changes was recorded."""
        return next(it for it in reversed(self._seen) if it.position <= position)

    def _move_ids_on(self) -> None:
        node = read_node(self.disk, DATA_PATH)
        if isinstance(node, NodeFile):
            write_node(self.disk, DATA_PATH, node._replace(ids_reserved=node.ids_reserved + IDS_AHEAD))

    def start(self, crash: Crash) -> None:
        super().start(crash)
        was_lost, self._was_lost = self._was_lost, False
        if was_lost:
            odd = [it for it in self.running.recovered.damage if not it.text.startswith(EXPECTED)]
            if odd:
                raise Violation(f"a prefix of what was recorded is found to be damaged: {odd}")

    def _observe(self) -> None:
        super()._observe()
        self._seen.append(self._what_is_written())

    def _what_is_written(self) -> Seen:
        tails = {topic.log_id: topic.written_tail for topic in self.ledger.topics.values()}
        return Seen(len(self.changes), self.ledger.written, tails)

    def _go_back_to(self, seen: Seen) -> None:
        """Require only what was written then. Later changes may be there as well, or not."""
        ledger = self.ledger
        ledger.written = ledger.synced = seen.marks
        ledger.answered = min(ledger.answered, seen.marks.urgent)
        ledger.second_place_is_old = True  # topology.json is in roots only
        deleted = [topic for topics in ledger.deleted.values() for _, topic in topics]
        for topic in [*ledger.topics.values(), *deleted]:
            _cut(topic, seen.tails.get(topic.log_id, 0))
        for log_id, messages in ledger.seen.items():
            tail = seen.tails.get(log_id, 0)
            ledger.seen[log_id] = {it: body for it, body in messages.items() if it < tail}
        self.noted.clear()  # a backlog may be of messages that are no more


def _cut(topic: TopicModel, tail: int) -> None:
    topic.written_tail, topic.synced_tail = min(topic.written_tail, tail), min(topic.synced_tail, tail)
    topic.acknowledged = {it for it in topic.acknowledged if it < tail}


class LosingSimulation(Simulation):
    new_life = MirroredLife

    def _event(self) -> None:
        life = self.life
        assert isinstance(life, MirroredLife)
        life.confirm()
        if self.random.random() < 0.04:
            self.counts["machines lost"] += 1
            life.lose_machine()
            self._start(Crash.KILL)
        else:
            super()._event()


def live_with_losses(seed: int, note: Callable[[str], None] | None = None) -> Outcome:
    return run(seed, LOSSES, note, LosingSimulation)
