"""Trying again whatever is broken, apart from `Faults`, because it knows the owners, who know `Faults`.

The store's task calls this once a second as long as something is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from nsqd.log.faults import FaultKind
from nsqd.log.log_fault import LogFault
from nsqd.log.reading.reads import ReadFault
from nsqd.log.topic_log import DiskLog

if TYPE_CHECKING:
    from nsqd.log.disk_reserve import DiskReserve
    from nsqd.log.faults import Faults, StorageFault
    from nsqd.log.journal.keeper import JournalKeeper
    from nsqd.log.memory_log import MemoryLog
    from nsqd.log.sync.removals import Removals
    from nsqd.log.wakeups import Wakeups

_NEED_SPACE: Final = frozenset({FaultKind.LOG, FaultKind.IDS, FaultKind.TOPOLOGY})  # they write something new


class Repairs:
    """Goes through the faults, and has the owner of each try to mend it.

    May touch wake-ups, and one fault: that of the ids is taken back before the reservation is written again. Every
    other owner takes its fault back itself when a try succeeds.
    """

    def __init__(
        self,
        faults: Faults,
        wakeups: Wakeups,
        *,
        keeper: JournalKeeper,
        removals: Removals,
        reserve: DiskReserve,
        logs: Mapping[str, DiskLog | MemoryLog],
        reserve_ids: Callable[[], None],
    ) -> None:
        """`reserve_ids` writes the reservation of ids again, after it could not be written."""
        self._faults = faults
        self._wakeups = wakeups
        self._keeper = keeper
        self._removals = removals
        self._reserve = reserve
        self._logs = logs
        self._reserve_ids = reserve_ids

    @property
    def needs_space(self) -> bool:
        """Whether one of the faults can be mended only when the disk takes data."""
        return self._keeper.needs_space or any(fault.kind in _NEED_SPACE for fault in self._faults)

    def run(self, *, has_space: bool) -> None:
        """Try again whatever is broken; without space, only what needs little or frees some."""
        for fault in self._faults:
            if has_space or fault.kind not in _NEED_SPACE:
                self._try_again(fault, has_space=has_space)

    def _try_again(self, fault: StorageFault, *, has_space: bool) -> None:
        if isinstance(fault, LogFault):
            topic_log = self._logs.get(fault.topic)
            if isinstance(topic_log, DiskLog):
                topic_log.try_to_repair()
        elif isinstance(fault, ReadFault):
            fault.reader.ask_again()
        elif fault.kind is FaultKind.JOURNAL:
            self._keeper.repair(has_space=has_space)
        elif fault.kind is FaultKind.IDS:
            fault.end()
            self._reserve_ids()
        elif fault.kind is FaultKind.TOPOLOGY:
            self._wakeups.topology.set()
        elif fault.kind is FaultKind.DROPPING:
            self._removals.try_again()
        elif fault.kind is FaultKind.REMOVAL:
            self._wakeups.sync.set()
        elif fault.kind is FaultKind.RESERVE:
            self._reserve.look()
        # The data path's place is looked at by a timer.
