"""The storage faults of the data path. They determine the node's health, and which repairs to try.

Each part that can break owns a `StorageFault` and calls its `begin` and `end`:

    DiskLog: LogFault                    a write or a sync failed           log_fault.py
    a reader: ReadFault                  the disk refuses to read           reading/reads.py
    JournalKeeper                        the journal can't be relied on     journal/keeper.py
    DiskReserve                          too little space is free           disk_reserve.py
    Removals, TopologyFile, DiskStore    the other kinds

`Faults` lists the faults that have begun and not ended. upkeep/repairs.py tries to repair them.
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
    PLACE = auto()  # the data path isn't where it was: moved, or not mounted
    JOURNAL = auto()  # recorded changes may not be on disk
    LOG = auto()  # failed to write or sync messages of a topic
    READ = auto()  # failed to read messages of a topic for a while, so channels bypass them
    IDS = auto()  # failed to write a reservation of ids
    TOPOLOGY = auto()  # failed to write the names of topics and channels
    DROPPING = auto()  # failed to rename the folder of a deleted topic
    REMOVAL = auto()  # failed to remove a file
    RESERVE = auto()  # less space is free than the disk reserve, so publishing stops
    REMOTE = auto()  # the store of --remote doesn't answer, so publishes that wait for it are refused


class StorageFault:
    """One possible fault, which its owner begins and ends."""

    def __init__(self, faults: Faults, kind: FaultKind) -> None:
        self.kind = kind
        self.error: DiskError | None = None  # None while all is well
        self._faults = faults

    def begin(self, error: DiskError) -> None:
        """Report the fault. If it has already begun, replace its error."""
        is_new = self.error is None
        self.error = error
        self._faults.began(self, error, is_new=is_new)

    def end(self) -> None:
        """Clear the fault. Does nothing if it hasn't begun."""
        error, self.error = self.error, None
        if error is not None:
            self._faults.ended(self, error)


class Faults:
    """The current faults, oldest first.

    Touches only two wake-ups: for the repairs, and for the task that reports the health to nsqlookupd.
    """

    def __init__(self, wakeups: Wakeups) -> None:
        self.health = "OK"
        self.state = ""  # how nsqlookupd lists this node: `FULL`, `UNHEALTHY`, or empty if all is well
        self._wakeups = wakeups
        self._present: dict[StorageFault, None] = {}

    def __iter__(self) -> Iterator[StorageFault]:
        """Iterate over a copy, so that you can begin and end faults inside the loop."""
        return iter(tuple(self._present))

    def __contains__(self, kind: FaultKind) -> bool:
        return any(fault.kind is kind for fault in self._present)

    def __len__(self) -> int:
        return len(self._present)

    def texts(self) -> list[str]:
        return [fault.error.text for fault in self._present if fault.error is not None]

    def began(self, fault: StorageFault, error: DiskError, *, is_new: bool) -> None:
        """Add or update a fault. Logs it if it's new. Only `StorageFault.begin` calls this."""
        if is_new:
            if fault.kind is FaultKind.RESERVE:
                log.warning("publishing stopped until there is space error=%s", error.text)
            else:
                log.error("storage fault error=%s", error.text)
        self._present[fault] = None
        self._set_health()
        self._wakeups.repair.set()

    def ended(self, fault: StorageFault, error: DiskError) -> None:
        """Remove a fault, and log that it's over. Only `StorageFault.end` calls this."""
        del self._present[fault]
        if fault.kind is FaultKind.RESERVE:
            log.info("publishing resumed")
        else:
            log.info("storage fault cleared error=%s", error.text)
        self._set_health()

    def _set_health(self) -> None:
        # If the data path isn't in its place, that explains all other faults, so report that one.
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
