"""When the journal is written and rotated, and what is reported when it fails.

Recording a change only puts it into the journal's buffer. The buffer is written as a whole

- in each turn that has recorded an urgent change: before the logs are written, and again before frames are sent
  (nsqd/broker/turn.py);
- some 50 ms after progress was made (`save_progress` in nsqd/timers.py);
- at most 100 ms after any other change (`StoreTasks._flush`), but for quiet ones, which wait for the next of any kind;
- at the beginning of each sync, which can then take it (`Syncer.collect`).

All of them come through `JournalKeeper`, but for the journal's own writes while it is rotated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.log_fault import RETRY_AFTER

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.files import DiskError
    from nsqd.log.journal.journal import Journal
    from nsqd.log.wakeups import Wakeups


class JournalKeeper:
    """Writes the journal, seldom while the disk fails, and reports its fault.

    May touch the journal, its fault, and the wake-ups of the store's tasks.
    """

    def __init__(self, journal: Journal, faults: Faults, wakeups: Wakeups, now: Callable[[], float]) -> None:
        self.journal = journal
        self._fault = StorageFault(faults, FaultKind.JOURNAL)
        self._wakeups = wakeups
        self._now = now
        self._rests_until = 0.0

    def write(self) -> bool:
        """Write the waiting changes. Return False if the disk does not take them, or has refused others a moment ago."""
        if self._rests_until and self._now() < self._rests_until:
            # A full disk stays full for a while, and each try would encode all waiting changes again, in every turn.
            self.journal.bound_waiting()
            return False
        written = self.journal.write()
        self._rests_until = 0.0 if written else self._now() + RETRY_AFTER
        self.check()
        return written

    def write_now(self) -> bool:
        """Write the waiting changes even if the disk has refused others a moment ago. Return False if it refuses again."""
        self._rests_until = 0.0
        return self.write()

    def check(self) -> None:
        """Report among the faults whether the journal can be relied on."""
        if self.journal.error is not None:
            self._fault.begin(self.journal.error)
        elif self._fault.error is not None:
            self._fault.end()
            self._wakeups.sync.set()  # files can be removed that the journal now says are finished

    def distrust(self, error: DiskError) -> None:
        """Refuse publishing until all that waits now is synced; otherwise a new message could count as finished."""
        self.journal.distrust(error)
        self.check()

    @property
    def needs_space(self) -> bool:
        """Whether the journal is broken and only a new file, which needs space, can mend it."""
        return self._fault.error is not None and self.journal.wants_rotation

    def repair(self, *, has_space: bool) -> None:
        if self.journal.wants_rotation and has_space:
            self._wakeups.rotation.set()
        elif not self.journal.is_rotating:
            self.write_now()
