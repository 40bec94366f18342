"""Retries after storage faults. The store's repair task runs them once a second while there is a fault.

They're separate from `Faults` to avoid a circular import: they need the owners of the faults, which import `Faults`.
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

_NEED_SPACE: Final = frozenset({FaultKind.LOG, FaultKind.IDS, FaultKind.TOPOLOGY})  # a retry writes new data


class Repairs:
    """Asks the owner of each fault to try again.

    Owners clear their own faults when a retry succeeds. The exception is the fault of the id reservation: we clear it
    here and then write the reservation again, which brings the fault back if it fails.
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
        """Set up the repairs. `reserve_ids` writes the reservation of message ids again."""
        self._faults = faults
        self._wakeups = wakeups
        self._keeper = keeper
        self._removals = removals
        self._reserve = reserve
        self._logs = logs
        self._reserve_ids = reserve_ids

    @property
    def needs_space(self) -> bool:
        """Whether a fault can only be cleared once the disk has space again."""
        return self._keeper.needs_space or any(fault.kind in _NEED_SPACE for fault in self._faults)

    def run(self, *, has_space: bool) -> None:
        """Try to repair every fault. Without `has_space`, skip the faults whose repair would write new data."""
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
        # Nothing to do for a data path that was moved away, or a store of objects that doesn't answer: others ask on.
