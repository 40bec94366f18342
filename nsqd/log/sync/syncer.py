"""When the log is synced, what a sync takes, and who hears of its end.

A sync makes durable what was written before it began: indexes, segments, folders, the journal. Only then does it remove
the files that the journal says are finished.

    a log or the journal was written to
          │
          ├─ a client waits ───> the turn begins the sync when it ends (`hurry`)  ┐
          └─ no client waits ──> the task begins it, after a pause (`pause`)      ┴─> begin ──> collect
                                                                                                   │
    publishers, calls of `Store.sync`, followers <── settle <── end <── performed in a thread <────┘

All of these rules are here, and nothing in here waits for the disk: sync_thread.py has the thread and the task, and
sync.py what the thread does. When the store is closed, no loop and no thread are needed (`sync_now`).
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

MOST_LOGS: Final = 1000  # in one sync; beginning and ending it costs the loop some microseconds for each
SHORTEST_PAUSE: Final = 0.01  # seconds between two syncs; otherwise a fast disk would be synced all the time
QUICK: Final = 0.001  # seconds; a client's answer comes soon if the last sync took no longer


class SyncHost(Protocol):
    """What the syncer asks of the store."""

    files: Files

    @property
    def is_in_place(self) -> bool:
        """Whether the data path is where it was opened."""

    def now(self) -> float: ...

    def write_everything(self) -> bool:
        """Write what is buffered, of logs and journal. Return whether the journal has all changes."""


class SyncPerformer(Protocol):
    """The thread, as the syncer knows it."""

    def perform(self, sync: Sync) -> None:
        """Perform the sync beside the loop. Whoever waits for that then calls `Syncer.end`."""


class SyncFailed(NotSynced):
    """A sync that somebody has waited for has failed."""

    def __init__(self, error: DiskError) -> None:
        super().__init__(error.text)
        self.error = error


class Syncer:
    """Begins and ends syncs, one at a time.

    May touch the syncing of logs and journal, the removals' part of a sync, and the wake-ups of the store's tasks.

    If more logs are unsynced than one sync takes, the next syncs take the rest, and the last of them answers the
    waiting calls of `Store.sync`. Logs that become unsynced meanwhile come after the rest. Under a steady load on many
    topics something is always unsynced, and a call that waited until nothing is would wait for ever.
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
        """Make the syncer of a store.

        `sync_every`: how many unsynced messages end the pause after a sync. `sync_timeout`: its longest pause.
        """
        self._host = host
        self._keeper = keeper
        self._removals = removals
        self._faults = faults
        self._wakeups = wakeups
        self._sync_every = sync_every
        self._sync_timeout = sync_timeout
        # None: it does not run, so no turn begins a sync. Not `_thread`, which mypyc would turn into a keyword of C.
        self._performer: SyncPerformer | None = None
        self._unsynced: dict[DiskLog, None] = {}
        self._unsynced_messages = 0
        self._result = SyncResult()  # of the sync that will take `_unsynced`
        self._rest: dict[DiskLog, None] = {}  # unsynced when a sync began that could not take all of them
        self._result_of_rest: SyncResult | None = None  # None: no rest
        self._sync: Sync | None = None  # the one in progress
        self._syncing: list[DiskLog] = []  # the logs of its jobs, in the same order
        self._began = 0.0
        self._took = 0.0  # seconds of the last sync
        self._synced: dict[DiskLog, None] = {}  # synced logs of which the journal has no checkpoint yet
        self._followers: list[Callable[[str], None]] = []
        self.holds_up_clients = False  # a publisher or a call waits for a sync, or for the running one
        self._has_just_answered = False  # this turn has ended a sync, and others wait for the next one

    # What makes a sync necessary

    def log_written(self, log: DiskLog, messages: int, *, is_awaited: bool = False) -> None:
        """Sync this log soon, to which `messages` messages were written. `is_awaited`: a publisher waits for the sync."""
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

    def wanted_result(self) -> SyncResult:
        """Return the result of the sync that makes durable what is written now, and begin that sync soon."""
        result = self._result
        result.is_wanted = True
        self.holds_up_clients = True
        self._wakeups.hurry.set()
        self.wake()
        return result

    async def next_sync(self, topics: Iterable[str]) -> None:
        """Return when what is written now is on disk. Raises SyncFailed if the journal or one of these logs is not."""
        result = self.wanted_result()
        await result.ended.wait()
        if (error := result.error_of(topics)) is not None:
            raise SyncFailed(error)

    def wake(self) -> None:
        """Begin a sync soon, because it has something to do."""
        self._wakeups.sync.set()

    def log_dropped(self, log: DiskLog) -> None:
        for place in (self._unsynced, self._rest, self._synced):
            place.pop(log, None)
        if self._sync is not None:
            self._sync.spare(log.folder)
        self._moved(log.topic)

    # When it begins

    def hurry(self) -> None:
        """Begin a sync at the end of a turn if clients wait for one.

        A client that this turn has answered will probably publish again at once. If the next sync began without it, two
        clients that publish one at a time would never share a sync. So the next turn begins that sync, or the task if no
        turn comes.
        """
        if self._has_just_answered:
            self._has_just_answered = False
        elif self.holds_up_clients:
            self.begin()

    @property
    def pause(self) -> float:
        """For how many seconds the task leaves the disk to the writers after a sync, as things are now.

        That is about as long as the sync took. A hurry shortens it: somebody waits for a sync, or many messages are unsynced.
        """
        if self.is_busy or self.is_awaited:
            return 0.0
        if self._unsynced_messages >= self._sync_every:
            return SHORTEST_PAUSE
        return max(SHORTEST_PAUSE, min(self._took, self._sync_timeout))

    @property
    def is_awaited(self) -> bool:
        """Whether a publisher or a call of `Store.sync` waits for a sync that has not begun."""
        if self._result.is_wanted or (self._result_of_rest is not None and self._result_of_rest.is_wanted):
            return True
        return any(log.waits_for_sync for log in chain(self._rest, self._unsynced))

    def start(self, thread: SyncPerformer) -> None:
        """Have this thread perform the syncs from now on."""
        self._performer = thread

    def stop(self) -> None:
        """Begin no further sync. The one that runs still has to be ended."""
        self._performer = None

    @property
    def is_busy(self) -> bool:
        return self._sync is not None

    def begin(self) -> None:
        """Begin a sync, unless one is running."""
        performer = self._performer
        if performer is None or self._sync is not None:
            return
        self._wakeups.sync.clear()  # the sync takes all that is to be synced
        sync = self.collect()
        if sync.is_empty:
            self.settle(sync)
            return
        self._began = self._host.now()
        performer.perform(sync)

    def answers_soon(self) -> bool:
        """Return whether clients wait for the running sync, and it will probably end within a millisecond.

        A sync that already takes longer does not count: if the disk hangs, other tasks must not wait at each turn.
        """
        if self._sync is None or self._took >= QUICK or not self.holds_up_clients:
            return False
        return self._host.now() - self._began < QUICK

    def end(self) -> bool:
        """End the sync if it was performed. Return whether publishers that waited have been answered.

        Raises what the thread has raised.
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
        """Sync at once, as no loop runs. Return what `end` returns. Blocks on the disk."""
        sync = self.collect(most)
        sync.perform(self._host.files)
        return self.settle(sync)

    # What it takes

    def collect(self, most: int = MOST_LOGS) -> Sync:
        """Write what is buffered, and take what is unsynced now, of at most `most` logs."""
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
        # Then the journal tells of each finished file why that may be removed.
        says_what_is_finished = journal_is_written and not journal.has_lost
        doubtful = [fault.folder for fault in self._log_faults() if fault.names_may_be_lost]
        if self._host.is_in_place:
            self._removals.begin_sync(sync, files_may_go=says_what_is_finished, doubtful=doubtful)
        else:
            for job in sync.jobs:
                job.indexes = []  # writing them would create files in the wrong folder; readers can make them anew
        return sync

    @property
    def has_rest(self) -> bool:
        """Whether the last sync could not take everything."""
        return self._result_of_rest is not None

    def _take_unsynced(self, most: int) -> tuple[list[DiskLog], SyncResult]:
        """Take logs, and the result that their sync will set. If logs are left, nobody waits for that result."""
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

    # Who hears of its end

    def settle(self, sync: Sync) -> bool:
        """Take back a sync that was performed, and tell everybody who waits for it.

        Return whether publishers that waited have been answered, or may go on.
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
        if journal.wants_rotation and journal.error is None:  # with an error, a repair rotates, and not in every sync
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
        """Take the synced logs of which the journal needs a new checkpoint."""
        synced, self._synced = self._synced, {}
        return list(synced)

    def follow(self, follower: Callable[[str], None]) -> None:
        """Have `follower` called with the name of each topic whose log has more synced messages, or was deleted."""
        self._followers.append(follower)

    def _moved(self, topic: str) -> None:
        for follower in self._followers:
            follower(topic)
