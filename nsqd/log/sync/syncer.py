"""Decides when to sync and what each sync covers, and answers the clients that wait for it.

A sync makes everything durable that was written before it began: indexes, segments, folders, the journal. Then it
removes the files that the journal says are finished.

    a log or the journal was written to
          │
          ├─ a client waits ───> the turn begins the sync when it ends (`hurry`)  ┐
          └─ no client waits ──> the task begins it, after a pause (`pause`)      ┴─> begin ──> collect
                                                                                                   │
    publishers, calls of `Store.sync`, followers <── settle <── end <── performed in a thread <────┘

All of these rules are here, and nothing here blocks except `sync_now`, which is for closing the store without loop and
thread. sync_thread.py has the thread and the task, and sync.py has the work of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.broker.store import NotSynced
from nsqd.log.log_fault import LogFault
from nsqd.log.sync.sync import Sync, SyncResult

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.files import DiskError, Files
    from nsqd.log.journal.keeper import JournalKeeper
    from nsqd.log.sync.removals import Removals
    from nsqd.log.topic_log import DiskLog
    from nsqd.log.wakeups import Wakeups

MOST_LOGS: Final = 1000  # in one sync, because each costs the loop a few microseconds at the beginning and at the end
SHORTEST_PAUSE: Final = 0.01  # seconds between two syncs; without a pause we'd sync a fast disk all the time
QUICK: Final = 0.001  # seconds; if the last sync took less, we expect the running one to end soon


class SyncHost(Protocol):
    """The store as the syncer sees it."""

    files: Files

    @property
    def is_in_place(self) -> bool:
        """Whether the data path is where it was opened."""

    def now(self) -> float: ...

    def write_everything(self) -> bool:
        """Write all buffers of logs and journal. Return whether the journal now has all changes."""


class SyncPerformer(Protocol):
    """The thread as the syncer sees it."""

    def perform(self, sync: Sync) -> None:
        """Perform the sync outside the loop. When it's done, `Syncer.end` must be called."""


class SyncFailed(NotSynced):
    """A sync failed while a caller was waiting for it."""

    def __init__(self, error: DiskError) -> None:
        super().__init__(error.text)
        self.error = error


class Syncer:
    """Begins and ends syncs, one at a time.

    Touches the sync state of logs and journal, the removals' part of a sync, and wake-ups of the store's tasks.

    If more than MOST_LOGS logs are unsynced, several syncs share them, and the last one answers the waiting calls of
    `Store.sync`. Logs that become unsynced in the meantime are synced after that. For example, with 2,500 unsynced logs
    a call waits for three syncs, even if the first 1,000 logs are written to again. Otherwise it might wait forever,
    because under a steady load on many topics there's always an unsynced log.
    """

    def __init__(
        self,
        host: SyncHost,
        keeper: JournalKeeper,
        removals: Removals,
        faults: Faults,
        wakeups: Wakeups,
        *,
        sync_every: int,
        sync_timeout: float,
    ) -> None:
        """Set up the syncer.

        `sync_every` unsynced messages end the pause after a sync early. `sync_timeout` is the longest pause.
        """
        self._host = host
        self._keeper = keeper
        self._removals = removals
        self._faults = faults
        self._wakeups = wakeups
        self._sync_every = sync_every
        self._sync_timeout = sync_timeout
        # None before `start` and after `stop`: then no turn begins a sync. mypyc would turn the name `_thread` into a
        # keyword of C.
        self._performer: SyncPerformer | None = None
        self._unsynced: dict[DiskLog, None] = {}
        self._unsynced_messages = 0
        self._result = SyncResult()  # the result of the sync that will take `_unsynced`
        self._rest: dict[DiskLog, None] = {}  # logs that the last sync had no room for
        self._result_of_rest: SyncResult | None = None  # None if there's no rest
        self._sync: Sync | None = None  # the running one
        self._syncing: list[DiskLog] = []  # the logs of its jobs, in the same order
        self._began = 0.0
        self._took = 0.0  # how long the last sync took, in seconds
        self._synced: dict[DiskLog, None] = {}  # synced logs whose checkpoint the journal doesn't have yet
        self._followers: list[Callable[[str], None]] = []
        self.holds_up_clients = False  # a client is waiting for the running sync or the next one
        self._has_just_answered = False  # this turn has ended a sync, and other clients wait for the next one

    # Reasons for a sync

    def log_written(self, log: DiskLog, messages: int, *, is_awaited: bool = False) -> None:
        """Sync this log soon. `messages` is how many were just written; `is_awaited` means that a publisher waits."""
        if not self._unsynced:
            self._wakeups.sync.set()
        self._unsynced[log] = None
        before = self._unsynced_messages
        self._unsynced_messages = before + messages
        if is_awaited:
            self.holds_up_clients = True
            self._wakeups.hurry.set()
        elif before < self._sync_every <= before + messages:
            self._wakeups.hurry.set()

    def request_sync(self) -> SyncResult:
        """Begin a sync soon that covers everything written so far, and return its result."""
        result = self._result
        result.is_wanted = True
        self.holds_up_clients = True
        self._wakeups.hurry.set()
        self.wake()
        return result

    async def next_sync(self, topics: Iterable[str]) -> None:
        """Return once everything written so far is synced.

        Raises SyncFailed if that failed for the journal or for the log of one of these topics.
        """
        result = self.request_sync()
        await result.ended.wait()
        if (error := result.error_of(topics)) is not None:
            raise SyncFailed(error)

    def wake(self) -> None:
        """Begin a sync soon, because there's something to sync or to remove."""
        self._wakeups.sync.set()

    def log_dropped(self, log: DiskLog) -> None:
        for place in (self._unsynced, self._rest, self._synced):
            place.pop(log, None)
        if self._sync is not None:
            self._sync.spare(log.folder)
        self._moved(log.topic)

    # When a sync begins

    def hurry(self) -> None:
        """Begin a sync at the end of a turn if clients are waiting for one.

        If this turn has just answered clients, leave that to the next turn. The clients will probably publish again
        right away, and then they can share the sync. Otherwise two clients that publish one message at a time would
        never share one, because each sync would begin just before the other client's message arrives. If there's no
        next turn, the task begins the sync.
        """
        if self._has_just_answered:
            self._has_just_answered = False
        elif self.holds_up_clients:
            self.begin()

    @property
    def pause(self) -> float:
        """How long the task should pause after a sync, in seconds, to leave the disk to the writers.

        That's about as long as the sync took. It's shorter if a client is waiting or many messages are unsynced.
        """
        if self.is_busy or self.is_awaited:
            return 0.0
        if self._unsynced_messages >= self._sync_every:
            return SHORTEST_PAUSE
        return max(SHORTEST_PAUSE, min(self._took, self._sync_timeout))

    @property
    def is_awaited(self) -> bool:
        """Whether a publisher or a call of `Store.sync` is waiting for a sync that hasn't begun."""
        if self._result.is_wanted or (self._result_of_rest is not None and self._result_of_rest.is_wanted):
            return True
        return any(log.waits_for_sync for log in chain(self._rest, self._unsynced))

    def start(self, thread: SyncPerformer) -> None:
        """Perform syncs in this thread from now on."""
        self._performer = thread

    def stop(self) -> None:
        """Begin no more syncs. If one is running, it still has to be ended."""
        self._performer = None

    @property
    def is_busy(self) -> bool:
        return self._sync is not None

    def begin(self) -> None:
        """Begin a sync, unless one is running."""
        performer = self._performer
        if performer is None or self._sync is not None:
            return
        self._wakeups.sync.clear()  # this sync covers everything that the wake-up was for
        sync = self.collect()
        if sync.is_empty:
            self.settle(sync)
            return
        self._began = self._host.now()
        performer.perform(sync)

    def answers_soon(self) -> bool:
        """Return whether clients are waiting for the running sync, and it will probably end within a millisecond.

        Return False if the sync is already taking longer. The poller waits a moment for a sync that ends soon, so if
        the disk hung, this would delay other tasks in every turn.
        """
        if self._sync is None or self._took >= QUICK or not self.holds_up_clients:
            return False
        return self._host.now() - self._began < QUICK

    def end(self) -> bool:
        """End the running sync if the thread has performed it. Return whether waiting publishers have been answered.

        If the thread has raised an exception, raise it here.
        """
        sync = self._sync
        if sync is None or not sync.is_performed:
            return False
        self._took = self._host.now() - self._began
        if sync.bug is not None:
            self._sync = None
            raise sync.bug
        return self.settle(sync)

    def sync_now(self, most: int = MOST_LOGS) -> bool:
        """Sync right here, without the loop. Return the same as `end`. Blocks on the disk."""
        sync = self.collect(most)
        sync.perform(self._host.files)
        return self.settle(sync)

    # What a sync covers

    def collect(self, most: int = MOST_LOGS) -> Sync:
        """Write all buffers, and create a sync of everything unsynced, with at most `most` logs."""
        journal_is_written = self._host.write_everything()
        unsynced, result = self._take_unsynced(most)
        sync = self._sync = Sync(result)
        self._syncing = []
        for log in unsynced:
            if (job := log.begin_sync()) is not None:
                self._syncing.append(log)
                sync.jobs.append(job)
        journal = self._keeper.journal
        sync.journal = journal.begin_sync()
        # Only a complete journal says for each finished file that its messages are finished. If changes are missing, a
        # removal might reach the disk before its reason.
        journal_is_complete = journal_is_written and not journal.has_lost
        doubtful = [fault.folder for fault in self._log_faults() if fault.has_unsynced_names]
        if self._host.is_in_place:
            self._removals.begin_sync(sync, files_may_go=journal_is_complete, doubtful=doubtful)
        else:
            for job in sync.jobs:
                job.indexes = []  # writing them would create files in the wrong folder, and readers can rebuild them
        return sync

    @property
    def has_rest(self) -> bool:
        """Whether the last sync had no room for some logs."""
        return self._result_of_rest is not None

    def _take_unsynced(self, most: int) -> tuple[list[DiskLog], SyncResult]:
        """Take the logs for a sync, and its result. If logs are left over, no call is waiting for that result."""
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

    # The end of a sync

    def settle(self, sync: Sync) -> bool:
        """Apply the results of a performed sync, and answer everyone who was waiting for it.

        Return whether waiting publishers have been answered, or can continue because files were removed.
        """
        answered = self._removals.has_removed(sync)
        self._sync = None
        logs, self._syncing = self._syncing, []
        for log, job in zip(logs, sync.jobs, strict=True):
            answered |= log.end_sync(job)
            if job.error is None and not log.dropped:
                self._synced[log] = None
                self._moved(log.topic)
        if self._synced:
            self._wakeups.flush.set()
        journal = self._keeper.journal
        if sync.journal is not None:
            journal.end_sync(sync.journal)
        self._keeper.check()
        self._removals.end_sync(sync)
        if journal.wants_rotation and journal.error is None:  # with an error, leave it to the repairs, which are rarer
            self._wakeups.rotation.set()
        if self._unsynced or self._result_of_rest is not None or self._result.is_wanted:
            self.wake()
        result = sync.result
        result.error = journal.error
        result.log_errors = {fault.topic: fault.error for fault in self._log_faults() if fault.error is not None}
        result.ended.set()
        self.holds_up_clients = self.is_awaited
        self._has_just_answered = answered and self.holds_up_clients
        return answered

    def _log_faults(self) -> list[LogFault]:
        return [fault for fault in self._faults if isinstance(fault, LogFault)]

    def take_synced(self) -> list[DiskLog]:
        """Remove and return the synced logs that need a new checkpoint in the journal."""
        synced, self._synced = self._synced, {}
        return list(synced)

    def follow(self, follower: Callable[[str], None]) -> None:
        """Call `follower` with the topic's name whenever a log has more synced messages or is deleted."""
        self._followers.append(follower)

    def _moved(self, topic: str) -> None:
        for follower in self._followers:
            follower(topic)
