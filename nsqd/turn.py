"""Turns of nsqd: whatever enters the broker (ready sockets, an HTTP call, a deadline) runs from `begin` to `finish`.

Nothing in a turn waits, so turns never overlap. `nsqd/broker/turn.py` explains what happens at the end of a turn, and
why in that order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final, Protocol

from nsqcommon.wakeup import Wakeup
from nsqd.broker.turn import Announce, Disk, finish_turn

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker


MOST_TOPICS: Final = 200  # that get messages in one turn: a write, an answer and more take up to 60 us for each


class TurnSyncer(Protocol):
    """The part of the store that syncs."""

    @property
    def holds_up_clients(self) -> bool:
        """Whether a publisher or a call waits for a sync."""

    def hurry(self) -> None:
        """Begin a sync at the end of a turn if clients wait for one."""


class TurnStore(Disk, Protocol):
    @property
    def syncer(self) -> TurnSyncer: ...

    def sync(self) -> Awaitable[None]: ...


class Turn:
    def __init__(self, broker: Broker, store: TurnStore, *, announce: Announce, flush: Callable[[], None]) -> None:
        """Set up the turns of a broker.

        `announce` tells nsqlookupd of topics that came, went or have other channels; `flush` sends clients their answers
        and messages.
        """
        self._broker = broker
        self._store = store
        self._syncer = store.syncer
        self._announce = announce
        self._flush = flush
        self.alarm_came_closer = Wakeup()
        self.progress_made = Wakeup()
        self.publishes_wait = Wakeup()  # until files are removed
        self.something_to_reclaim = Wakeup()
        self.timers_sleep_until = 0.0

    def begin(self) -> float:
        """Take the time of this turn and return it."""
        return self.take_time()

    def take_time(self) -> float:
        """Take the time again and return it, because a turn that serves many connections may last."""
        turn = self._broker.turn
        turn.now = now = monotonic()
        turn.timestamp = time_ns()
        return now

    def is_full(self) -> bool:
        """Return whether so many topics have got messages that no other connection should be read in this turn."""
        return len(self._broker.turn.unsealed) >= MOST_TOPICS

    def finish(self) -> None:
        """End the turn: see `finish_turn`. Then begin a sync if clients wait for one, and wake tasks that have work."""
        broker, turn = self._broker, self._broker.turn
        finish_turn(broker, self._store, announce=self._announce, flush=self._flush)
        if self._syncer.holds_up_clients:
            self._syncer.hurry()
        if turn.alarms.next < self.timers_sleep_until:
            self.alarm_came_closer.set()
        if turn.journal.unsaved or turn.to_release or turn.shape_unsaved:
            self.progress_made.set()
        if turn.postponed:
            self.publishes_wait.set()
        if not turn.reclaimer.is_empty:
            self.something_to_reclaim.set()

    async def durable(self) -> None:
        """Wait until everything decided so far is on disk."""
        await self._store.sync()
