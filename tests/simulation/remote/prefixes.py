"""Every beginning of what was recorded of a disk is a data path that `nsqd fsck` finds sound and a node starts from.

Beside the life of a node, which goes on, another node starts from the files of some beginning, and is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from nsqd.fsck.examination import Examination
from nsqd.fsck.finding import FsckSeverity
from nsqd.log.data_path import DataPathError
from nsqd.log.topic_log import DiskLog
from tests.simulation.disk import DATA_PATH, SimulatedDisk
from tests.simulation.machine import Clock, Machine
from tests.simulation.promise import Violation
from tests.simulation.remote.lost_machine import EXPECTED, LOSSES, LosingSimulation, MirroredLife
from tests.simulation.remote.mirror import fill
from tests.simulation.simulation import Outcome, run

_SERIOUS: Final = (FsckSeverity.DAMAGE, FsckSeverity.UNREADABLE)


class PrefixLife(MirroredLife):
    def start_from_prefix(self) -> None:
        """Start a node from the files after some of the changes. It must find what was written when these were recorded."""
        random = Random(self.random.random())
        end = random.randint(self.recovered, len(self.changes))
        disk = SimulatedDisk(random=random)
        fill(disk, *self.mirror.files_after(self.changes[:end], random))
        self._examine(disk, end)
        try:
            machine = Machine(disk, Clock(), self.settings, self.options, random, self.rules)
        except DataPathError as error:
            raise Violation(f"no start after {end} of {len(self.changes)} changes: {error}") from error
        damage = [it for it in machine.recovered.damage if not it.text.startswith(EXPECTED)]
        if damage:
            raise Violation(f"damage after {end} of {len(self.changes)} changes: {damage}")
        self._check_tails(machine, end)

    def _examine(self, disk: SimulatedDisk, end: int) -> None:
        examined = Examination(disk, DATA_PATH, new_id=str).run()
        if found := [it for it in examined if it.severity in _SERIOUS and not it.text.startswith(EXPECTED)]:
            raise Violation(f"fsck after {end} of {len(self.changes)} changes: {found}")

    def _check_tails(self, machine: Machine, end: int) -> None:
        tails = {it.log.log_id: it.log.tail for it in machine.broker.topics.values() if isinstance(it.log, DiskLog)}
        seen = self.seen_at(end)
        for log_id, tail in seen.tails.items():
            is_there = log_id in tails or seen.position == end  # it may have been deleted since
            if is_there and tails.get(log_id, 0) < tail:
                raise Violation(
                    f"log {log_id} ends at {tails.get(log_id)} after {end} changes, and had {tail} messages"
                )


class PrefixSimulation(LosingSimulation):
    new_life = PrefixLife

    def _event(self) -> None:
        super()._event()
        life = self.life
        assert isinstance(life, PrefixLife)
        if life.machine is not None and self.random.random() < 0.2:
            self.counts["prefixes"] += 1
            life.start_from_prefix()


def live_with_prefixes(seed: int, note: Callable[[str], None] | None = None) -> Outcome:
    return run(seed, LOSSES, note, PrefixSimulation)
