"""Which logs the next rounds sync, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from nsqd.log.sync.sync import Sync, SyncResult
from nsqd.log.topic_log import DiskLog

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.journal.keeper import JournalKeeper
    from nsqd.log.sync.removals import Removals
    from nsqd.log.wakeups import Wakeups

MOST_LOGS: Final = 1000  # in one round; beginning and ending it costs the loop some microseconds for each


class Syncer:
    """Begins and ends rounds, one at a time.

    May touch the syncing of logs and journal, the removals' part of a round, and the committer's wake-ups. It writes
    nothing itself: the caller of `begin` has written what was buffered.

    If more logs are unsynced than one round takes, the next rounds take the rest, and the last of them answers the
    waiting calls of `Store.sync`. Logs that become unsynced meanwhile come after the rest. Under a steady load on many
    topics something is always unsynced, and a call that waited until nothing is would wait for ever.
    """

    def __init__(
        self, keeper: JournalKeeper, removals: Removals, faults: Faults, wakeups: Wakeups, *, sync_every: int
    ) -> None:
        """`sync_every`: how many unsynced messages end the pause between two rounds."""
        self._keeper = keeper
        self._removals = removals
        self._faults = faults
        self._wakeups = wakeups
        self._sync_every = sync_every
        self._unsynced: dict[DiskLog, None] = {}
        self._unsynced_messages = 0
        self._result = SyncResult()  # of the round that will sync `_unsynced`
        self._rest: dict[DiskLog, None] = {}  # unsynced when a round began that could not take all of them
        self._result_of_rest: SyncResult | None = None  # None: no rest
        self._round: Sync | None = None  # the one in progress
        self._synced: dict[DiskLog, None] = {}  # synced logs of which the journal has no checkpoint yet
        self._followers: list[Callable[[str], None]] = []
        self.holds_up_clients = False  # a publisher or a call of `Store.sync` waits for a round, or for the running one
        self.has_just_answered = False  # this turn has ended a round, and others wait for the next one

    def follow(self, follower: Callable[[str], None]) -> None:
        """Have `follower` called with the name of each topic whose log has more synced messages, or was deleted."""
        self._followers.append(follower)

    def _moved(self, topic: str) -> None:
        for follower in self._followers:
            follower(topic)

    def wake(self) -> None:
        """Begin a round soon, because it has something to do."""
        self._wakeups.sync.set()

    def log_written(self, log: DiskLog, messages: int) -> None:
        """Sync this log soon, to which `messages` messages were written."""
        if not self._unsynced:
            self._wakeups.sync.set()
        self._unsynced[log] = None
        before = self._unsynced_messages
        self._unsynced_messages = before + messages
        if log.waits_for_sync:
            self.holds_up_clients = True
            self._wakeups.hurry.set()
        elif before < self._sync_every <= before + messages:
            self._wakeups.hurry.set()

    def log_dropped(self, log: DiskLog) -> None:
        for place in (self._unsynced, self._rest, self._synced):
            place.pop(log, None)
        if self._round is not None:
            self._round.spare(log.folder)
        self._moved(log.topic)

    def wanted_result(self) -> SyncResult:
        """Return the result of the round that makes durable what is written now, and begin that round soon."""
        result = self._result
        result.is_wanted = True
        self.holds_up_clients = True
        self._wakeups.hurry.set()
        self.wake()
        return result

    @property
    def is_awaited(self) -> bool:
        """Whether a publisher or a call of `Store.sync` waits for a round."""
        if self._result.is_wanted or (self._result_of_rest is not None and self._result_of_rest.is_wanted):
            return True
        return any(log.waits_for_sync for log in chain(self._rest, self._unsynced))

    @property
    def has_to_hurry(self) -> bool:
        return self._unsynced_messages >= self._sync_every or self.is_awaited

    @property
    def has_rest(self) -> bool:
        """Whether the last round could not take everything."""
        return self._result_of_rest is not None

    def begin(self, most: int, *, journal_is_written: bool, is_in_place: bool) -> Sync:
        """Take what is unsynced now, of at most `most` logs.

        `journal_is_written`: the journal has all changes, so it tells of each finished file why that may be removed.
        """
        unsynced, result = self._take_unsynced(most)
        round_ = self._round = Sync(result)
        for log in unsynced:
            if (job := log.begin_sync()) is not None:
                round_.logs.append(log)
                round_.jobs.append(job)
        journal = self._keeper.journal
        round_.journal = journal.begin_sync()
        says_what_is_finished = journal_is_written and not journal.has_lost
        doubtful = [one.folder for one in self._faults if isinstance(one, DiskLog) and one.names_may_be_lost]
        if is_in_place:
            self._removals.begin_round(round_, files_may_go=says_what_is_finished, doubtful=doubtful)
        else:
            for job in round_.jobs:
                job.indexes = []  # writing them would create files in the wrong folder; readers can make them anew
        return round_

    def _take_unsynced(self, most: int) -> tuple[list[DiskLog], SyncResult]:
        """Take logs, and the result that their round will set. If logs are left, nobody waits for that result."""
        if self._result_of_rest is None:
            self._rest, self._unsynced = self._unsynced, {}
            self._result_of_rest, self._result = self._result, SyncResult()
            self._unsynced_messages = 0
        taken = list(islice(self._rest, most))
        for log in taken:
            del self._rest[log]
        if self._rest:
            return taken, SyncResult()
        result, self._result_of_rest = self._result_of_rest, None
        return taken, result

    def end(self, round_: Sync) -> bool:
        """Take back a round. Return whether publishers that waited have been answered, or may go on."""
        answered = self._removals.has_removed(round_)
        self._round = None
        for log, job in zip(round_.logs, round_.jobs, strict=True):
            answered |= log.end_sync(job)
            if job.error is None and not log.dropped:
                self._synced[log] = None
                self._moved(log.topic)
        if self._synced:
            self._wakeups.flush.set()
        journal = self._keeper.journal
        if round_.journal is not None:
            journal.end_sync(round_.journal)
        self._keeper.check()
        self._removals.end_round(round_)
        if journal.wants_rotation and journal.error is None:  # with an error, a repair rotates, and not in every round
            self._wakeups.rotation.set()
        if self._unsynced or self._result_of_rest is not None or self._result.is_wanted:
            self.wake()
        result = round_.result
        result.error = journal.error
        result.log_errors = {one.topic: one.error for one in self._faults if isinstance(one, DiskLog) and one.error}
        result.ended.set()
        self.holds_up_clients = self.is_awaited
        self.has_just_answered = answered and self.holds_up_clients
        return answered

    def take_synced(self) -> list[DiskLog]:
        """Take the synced logs of which the journal needs a new checkpoint."""
        synced, self._synced = self._synced, {}
        return list(synced)
