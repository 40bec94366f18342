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


class TurnStore(Disk, Protocol):
    def hurry(self) -> None:
        """Begin to sync at once if clients wait for that."""

    def sync(self) -> Awaitable[None]: ...


class Turn:
    def __init__(self, broker: Broker, store: TurnStore, *, announce: Announce, flush: Callable[[], None]) -> None:
        """Set up the turns of a broker.

        `announce` tells nsqlookupd of topics that came, went or have other channels; `flush` sends clients what they
        are to get.
        """
        self._broker = broker
        self._store = store
        self._announce = announce
        self._flush = flush
        self.alarm_came_closer = Wakeup()
        self.progress_made = Wakeup()
        self.publishes_wait = Wakeup()  # until files are removed
        self.something_to_reclaim = Wakeup()
        self.timers_sleep_until = 0.0

    def begin(self) -> float:
        return self.take_time()

    def take_time(self) -> float:
        turn = self._broker.turn
        turn.now = now = monotonic()
        turn.timestamp = time_ns()
        return now

    def is_full(self) -> bool:
        """Return whether as many topics have got messages as one turn may write; who is being read may add more."""
        return len(self._broker.turn.unsealed) >= MOST_TOPICS

    def finish(self) -> None:
        broker, turn = self._broker, self._broker.turn
        finish_turn(broker, self._store, announce=self._announce, flush=self._flush)
        self._store.hurry()
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
