"""Decides when to write and rotate the journal, and reports its failures.

Recording a change only adds it to the journal's buffer. We write the whole buffer:

- In each turn that has recorded an urgent change, before the logs are written, and again before frames are sent
  (nsqd/broker/turn.py).
- About 50 ms after a channel made progress (`save_progress` in nsqd/timers.py).
- At most 100 ms after any other change (`StoreTasks._flush`), except quiet ones, which wait for the next write.
- At the beginning of each sync, so that it covers these changes (`Syncer.collect`).

All of these go through `JournalKeeper`. Only during a rotation does the journal write on its own.
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
    """Writes the journal, less often while the disk fails, and reports its fault.

    Touches the journal, its fault, and wake-ups of the store's tasks.
    """

    def __init__(self, journal: Journal, faults: Faults, wakeups: Wakeups, now: Callable[[], float]) -> None:
        self.journal = journal
        self._fault = StorageFault(faults, FaultKind.JOURNAL)
        self._wakeups = wakeups
        self._now = now
        self._rests_until = 0.0

    def write(self) -> bool:
        """Write the waiting changes. Return False if that fails, or if a write failed less than a second ago."""
        if self._rests_until and self._now() < self._rests_until:
            # A full disk stays full for a while. Without this rest, we'd encode all waiting changes again every turn.
            self.journal.bound_waiting()
            return False
        written = self.journal.write()
        self._rests_until = 0.0 if written else self._now() + RETRY_AFTER
        self.check()
        return written

    def write_now(self) -> bool:
        """Write the waiting changes even if a write has just failed. Return False if this one fails too."""
        self._rests_until = 0.0
        return self.write()

    def check(self) -> None:
        """Begin or end the journal's fault, depending on whether the journal has an error now."""
        if self.journal.error is not None:
            self._fault.begin(self.journal.error)
        elif self._fault.error is not None:
            self._fault.end()
            self._wakeups.sync.set()  # a sync can now remove the files that are finished according to the journal

    def distrust(self, error: DiskError) -> None:
        """Refuse publishes until all waiting changes are synced.

        Call this if recovery has moved cursors back to a log's tail, but couldn't sync that. Otherwise a crash could
        restore the old cursors, which would count new messages as finished.
        """
        self.journal.distrust(error)
        self.check()

    @property
    def needs_space(self) -> bool:
        """Whether the journal is broken and only a rotation can repair it, which needs space for a new file."""
        return self._fault.error is not None and self.journal.wants_rotation

    def repair(self, *, has_space: bool) -> None:
        if self.journal.wants_rotation and has_space:
            self._wakeups.rotation.set()
        elif not self.journal.is_rotating:
            self.write_now()
