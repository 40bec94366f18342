"""When the journal is written and rotated, and what is told when it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqd.log.log_fault import RETRY_AFTER

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.journal.journal import Journal
    from nsqd.log.wakeups import Wakeups


class JournalKeeper:
    """Writes the journal, not too often while the disk fails, and keeps the faults true to it.

    May touch the journal, its entry among the faults, and the committer's wake-ups.
    """

    def __init__(self, journal: Journal, faults: Faults, wakeups: Wakeups, now: Callable[[], float]) -> None:
        self.journal = journal
        self._faults = faults
        self._wakeups = wakeups
        self._now = now
        self._rests_until = 0.0

    def write(self) -> bool:
        """Write the changes that wait; False: the disk does not take them now."""
        if self._rests_until and self._now() < self._rests_until:
            # A full disk stays full for a while, and everything that waits would be encoded again in every turn.
            self.journal.bound_waiting()
            return False
        return self.write_now()

    def write_now(self) -> bool:
        written = self.journal.write()
        self._rests_until = 0.0 if written else self._now() + RETRY_AFTER
        self.check()
        return written

    def check(self) -> None:
        """Tell the faults whether the journal can be relied on."""
        if self.journal.error is not None:
            self._faults.broken(self.journal, self.journal.error)
        elif self.journal in self._faults:
            self._faults.repaired(self.journal)
            self._wakeups.sync.set()  # what the journal now says is finished can go

    def distrust(self, error: str) -> None:
        """Refuse publishing until all that waits now is synced: else a new message could count as finished."""
        self.journal.distrust(error)
        self.check()

    @property
    def needs_space(self) -> bool:
        """Whether it is broken, and only a new file can mend that."""
        return self.journal in self._faults and self.journal.wants_rotation

    def repair(self, *, has_space: bool) -> None:
        if self.journal.wants_rotation and has_space:
            self._wakeups.rotation.set()
        elif not self.journal.is_rotating:
            self.write_now()
