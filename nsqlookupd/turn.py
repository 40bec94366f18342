"""One turn of nsqlookupd: peers and operators change the registry between `begin` and `finish`. Turns never overlap."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final

import trio

from nsqcommon.turn import in_turn
from nsqcommon.wakeup import Wakeup

if TYPE_CHECKING:
    from nsqlookupd.registry import Registry


_SLICE: Final = 0.001  # seconds of clearing before others get their turn
_ROUNDS: Final = 5  # of the event loop for others between two slices: an answer over HTTP takes that many


class Turn:
    def __init__(self, registry: Registry, flush: Callable[[], None]) -> None:
        """`flush` is the poller's: it sends what is queued for clients."""
        self._registry = registry
        self._flush = flush
        self._sleeping_until = 0.0
        self._deadline_came_closer = Wakeup()
        self._somebody_has_left = Wakeup()

    def begin(self) -> float:
        return self.take_time()

    def take_time(self) -> float:
        """Tell the registry the time, and return it, in monotonic seconds."""
        now = monotonic()
        self._registry.advance(now=now, timestamp=time_ns())
        return now

    def finish(self) -> None:
        self._flush()
        if self._registry.next_deadline < self._sleeping_until:
            self._deadline_came_closer.set()
        if self._registry.has_departed:
            self._somebody_has_left.set()

    async def clear_departed(self) -> None:
        """Clear the registrations of departed peers, in slices, so that others are served meanwhile."""
        while True:
            await self._somebody_has_left.wait()
            with in_turn(self) as now:
                while self._registry.has_departed and monotonic() < now + _SLICE:
                    self._registry.clear_some()
            for _ in range(_ROUNDS):
                await trio.lowlevel.checkpoint()

    async def keep_time(self) -> None:
        """Expire peers and tombstones on time: this is a change that a waiting `/lookup` has to be woken for."""
        while True:
            self._deadline_came_closer.clear()
            self._sleeping_until = self._registry.next_deadline
            # trio's clock has an offset of its own, so only the difference of two times means the same on both.
            with trio.move_on_after(max(0.0, self._sleeping_until - monotonic())):
                await self._deadline_came_closer.wait()
            with in_turn(self):
                pass
