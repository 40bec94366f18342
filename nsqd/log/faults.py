"""What is broken in the data path now: it decides the node's health and what the repairs try again.

Whoever owns a thing that can break also owns its `StorageFault`, and calls `begin` and `end`:

    DiskLog, its LogFault      a write or a sync has failed       log_fault.py
    a reader, its ReadFault    the disk refuses to read           reading/reads.py
    JournalKeeper              the journal cannot be relied on    journal/keeper.py
    DiskReserve                too little of the disk is free     disk_reserve.py
    Removals, TopologyFile, DiskStore                             the others

`Faults` is only the list of those that have begun and not ended. The tries to mend them are in upkeep/repairs.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING

from nsqcommon.wire.lookup import FULL, UNHEALTHY

if TYPE_CHECKING:
    from nsqd.log.files import DiskError
    from nsqd.log.wakeups import Wakeups

log = logging.getLogger(__name__)


class FaultKind(Enum):
    PLACE = auto()  # the data path is not where it was
    JOURNAL = auto()  # what was recorded may not be on disk
    LOG = auto()  # messages of a topic could not be written or synced
    READ = auto()  # messages of a topic cannot be read, and channels bypass them
    IDS = auto()  # a reservation of ids was not written
    TOPOLOGY = auto()  # the names of topics and channels were not written
    DROPPING = auto()  # the folder of a deleted topic was not renamed
    REMOVAL = auto()  # a file was not removed
    RESERVE = auto()  # too little of the disk is free, and publishing stops


class StorageFault:
    """One thing that may be broken. Its owner makes it, and says how things are."""

    def __init__(self, faults: Faults, kind: FaultKind) -> None:
        self.kind = kind
        self.error: DiskError | None = None  # why it is broken; None: it works
        self._faults = faults

    def begin(self, error: DiskError) -> None:
        """Report the fault, or, if it has begun already, what is wrong now."""
        is_new = self.error is None
        self.error = error
        self._faults.began(self, error, is_new=is_new)

    def end(self) -> None:
        """Take the fault back, if it has begun."""
        error, self.error = self.error, None
        if error is not None:
            self._faults.ended(self, error)


class Faults:
    """The present faults, in the order in which they came.

    May touch nothing but two wake-ups: of the repairs, and of the task that tells nsqlookupd of another health.
    """

    def __init__(self, wakeups: Wakeups) -> None:
        self.health = "OK"
        self.state = ""  # in which nsqlookupds list this node: `FULL`, `UNHEALTHY`, or nothing if all is well
        self._wakeups = wakeups
        self._present: dict[StorageFault, None] = {}

    def __iter__(self) -> Iterator[StorageFault]:
        """Yield the faults that were there when the iteration began."""
        return iter(tuple(self._present))

    def __contains__(self, kind: FaultKind) -> bool:
        return any(fault.kind is kind for fault in self._present)

    def __len__(self) -> int:
        return len(self._present)

    def texts(self) -> list[str]:
        return [fault.error.text for fault in self._present if fault.error is not None]

    def began(self, fault: StorageFault, error: DiskError, *, is_new: bool) -> None:
        """Take up a fault, which calls this."""
        if is_new:
            if fault.kind is FaultKind.RESERVE:
                log.warning("publishing stops until there is space error=%s", error.text)
            else:
                log.error("a fault began error=%s", error.text)
        self._present[fault] = None
        self._set_health()
        self._wakeups.repair.set()

    def ended(self, fault: StorageFault, error: DiskError) -> None:
        """Drop a fault, which calls this."""
        del self._present[fault]
        if fault.kind is FaultKind.RESERVE:
            log.info("publishing goes on")
        else:
            log.info("a fault has ended error=%s", error.text)
        self._set_health()

    def _set_health(self) -> None:
        # A lost place explains all the others.
        lost = [fault for fault in self._present if fault.kind is FaultKind.PLACE]
        first = next(iter(lost or self._present), None)
        health = f"NOK - {first.error.text}" if first is not None and first.error is not None else "OK"
        state = self._state_now()  # depends on all faults, and may change while the first one stays
        if (health, state) != (self.health, self.state):
            self.health, self.state = health, state
            self._wakeups.health.set()

    def _state_now(self) -> str:
        if not self._present:
            return ""
        is_full = any(fault.error is not None and fault.error.is_full for fault in self._present)
        return FULL if is_full and FaultKind.PLACE not in self else UNHEALTHY
