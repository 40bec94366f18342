"""nsqd's turns. We handle each event for the broker in one: ready sockets, an HTTP call, or a deadline.

common/nsqcommon/poller.py reads and writes the sockets, and begins and finishes a turn for all ready ones. Nothing
waits between `begin` and `finish`, so turns never overlap. nsqd/broker/turn.py explains the steps at the end of a turn,
and the reasons for their order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final, Protocol

from nsqcommon.wakeup import Wakeup
from nsqd.broker.turn import Announce, Disk, finish_turn

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker


MOST_TOPICS: Final = 200  # with publishes in one turn; each costs up to 60 us, e.g. for its write and OK


class TurnSyncer(Protocol):
    """The part of the store's syncer that a turn uses."""

    @property
    def holds_up_clients(self) -> bool:
        """Whether a publisher or an HTTP call is waiting for a sync."""

    def hurry(self) -> None:
        """Start a sync if clients are waiting for one, or leave it to the next turn so that more clients share it."""


class TurnRemote(Protocol):
    """The part of the store's remote copy that a turn uses."""

    def hurry(self) -> None:
        """Have this turn's changes sent if a publisher waits for them."""

    def holds_back(self, size: int) -> bool:
        """Return whether publishes of this many bytes that wait for the copy are held back."""


class TurnStore(Disk, Protocol):
    @property
    def syncer(self) -> TurnSyncer: ...

    def sync(self) -> Awaitable[None]: ...


class Turn:
    def __init__(
        self,
        broker: Broker,
        store: TurnStore,
        *,
        announce: Announce,
        flush: Callable[[], None],
        remote: TurnRemote | None = None,
    ) -> None:
        """Set up the turns of a broker.

        `announce` registers changes to topics and channels with nsqlookupd. `flush` sends responses and messages to
        clients. `remote` is the store's copy elsewhere, if it has one.
        """
        self._broker = broker
        self._store = store
        self._syncer = store.syncer
        self._announce = announce
        self._flush = flush
        self._remote = remote
        if remote is not None:
            broker.holds_back = remote.holds_back
        self.alarm_came_closer = Wakeup()
        self.progress_made = Wakeup()
        self.publishes_wait = Wakeup()  # for the removal of files, or for the copy
        self.something_to_reclaim = Wakeup()
        self.timers_sleep_until = 0.0

    def begin(self) -> float:
        """Begin a turn: read the clocks and return the time."""
        return self.take_time()

    def take_time(self) -> float:
        """Read the clocks again and return the time, because a turn with many connections may take a while."""
        turn = self._broker.turn
        turn.now = now = monotonic()
        turn.timestamp = time_ns()
        return now

    def is_full(self) -> bool:
        """Return whether to stop reading from connections in this turn, because too many topics have publishes."""
        return len(self._broker.turn.unsealed) >= MOST_TOPICS

    def finish(self) -> None:
        """End the turn with `finish_turn`, start a sync or a slot if clients wait for one, and wake tasks with work."""
        broker, turn = self._broker, self._broker.turn
        finish_turn(broker, self._store, announce=self._announce, flush=self._flush)
        if self._syncer.holds_up_clients:
            self._syncer.hurry()
        if self._remote is not None:
            self._remote.hurry()
            broker.is_copy_behind = self._remote.holds_back(0)
        if turn.alarms.next < self.timers_sleep_until:
            self.alarm_came_closer.set()
        if turn.journal.unsaved or turn.to_release or turn.shape_unsaved:
            self.progress_made.set()
        if turn.postponed:
            self.publishes_wait.set()
        if not turn.reclaimer.is_empty:
            self.something_to_reclaim.set()

    async def durable(self, *topics: str) -> None:
        """Wait until all decisions so far, and all messages of these topics, are on disk."""
        await self._store.sync(*topics)
