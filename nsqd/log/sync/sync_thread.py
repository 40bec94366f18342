"""The thread that waits for the disk while a round makes things durable, and how a round gets there and back.

With `--ack=synced` a publisher waits for its round. On a quick disk a flush takes less time than the way through tasks
of trio, which first have to get their turn, to a worker thread and back. So there is a short way (docs/decisions/0024):

    end of a turn ──begin()──> queue ──> thread: open, fdatasync, close ──> eventfd ──end()──> the next turn: OK

The turn that has written the messages begins the round, and the poller watches the eventfd beside its sockets. The
committer's task goes the same way. It begins the rounds that no client waits for, and ends those that the poller has not
ended. So whoever comes second finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.log.sync.doorbell import make_doorbell

if TYPE_CHECKING:
    from nsqd.log.files import Files
    from nsqd.log.sync.sync import Sync
    from nsqd.log.sync.syncer import Syncer
    from nsqd.log.wakeups import Wakeups

NAME: Final = "nsqd sync"
QUICK: Final = 0.001  # seconds; a client's answer comes soon if the last round took no longer


class SyncStore(Protocol):
    """What the thread asks of the store."""

    files: Files
    wakeups: Wakeups
    rounds: Syncer

    def now(self) -> float: ...

    def begin_round(self) -> Sync: ...


class SyncThread:
    """Performs a store's rounds, one at a time. `begin` and `end` belong on the loop."""

    def __init__(self, store: SyncStore) -> None:
        self.doorbell = make_doorbell()  # rings when a round was performed
        self.took = 0.0  # seconds of the last round
        self._store = store
        self._round: Sync | None = None
        self._began = 0.0
        self._is_performed = False
        self._error: BaseException | None = None
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        # As trio's threads, it is a daemon: an interpreter that ends does not wait for a disk that hangs. Not `_thread`,
        # which mypyc would turn into a keyword of C.
        self._worker = Thread(target=self._perform_jobs, name=NAME, daemon=True)

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        """End the thread, which has nothing to do any more."""
        self._jobs.put(None)
        self._worker.join()
        self.doorbell.close()

    @property
    def is_busy(self) -> bool:
        return self._round is not None

    def answers_soon(self) -> bool:
        """Return whether clients wait for the running round, and it will probably end within a millisecond.

        A round that already takes longer does not count: if the disk hangs, other tasks must not wait at each turn.
        """
        if self._round is None or self.took >= QUICK or not self._store.rounds.holds_up_clients:
            return False
        return self._store.now() - self._began < QUICK

    def begin(self) -> None:
        """Begin a round, unless one is running."""
        if self._round is not None:
            return
        store = self._store
        store.wakeups.sync.clear()  # the round takes all that is to be synced
        round_ = store.begin_round()
        if round_.is_empty:
            store.rounds.end(round_)
            return
        self._round = round_
        self._began = store.now()
        self._jobs.put(lambda: round_.perform(store.files))

    def end(self) -> bool:
        """End the round if it was performed. Return whether publishers that waited have been answered.

        Raises what the thread has raised.
        """
        if self._round is None or not self._is_performed:
            return False
        self._is_performed = False
        round_, self._round = self._round, None
        self.took = self._store.now() - self._began
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._store.rounds.end(round_)

    def _perform_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # a bug, which `end` raises on the loop
                self._error = error
            del job  # what a round holds need not stay in memory until the next one
            self._is_performed = True
            self.doorbell.ring()
