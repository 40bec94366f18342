"""One turn of nsqlookupd: everything that enters the registry stands between `begin` and `finish`, which never overlap."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final

import trio

from common.turn import in_turn
from common.wakeup import Wakeup

if TYPE_CHECKING:
    from nsqlookupd.registry import Registry


_SLICE: Final = 0.001  # seconds of clearing at a stretch
_ROUNDS: Final = 5  # of the loop for others between two stretches: an answer over HTTP takes that many


class Turn:
    def __init__(self, registry: Registry, flush: Callable[[], None]) -> None:
        """`flush` sends what clients are to get: it is the poller's."""
        self._registry = registry
        self._flush = flush
        self._sleeping_until = 0.0
        self._deadline_came_closer = Wakeup()
        self._somebody_has_left = Wakeup()

    def begin(self) -> float:
        return self.take_time()

    def take_time(self) -> float:
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
        """Clear what departed peers have left behind, while others are served."""
        while True:
            await self._somebody_has_left.wait()
            with in_turn(self) as now:
                while self._registry.has_departed and monotonic() < now + _SLICE:
                    self._registry.clear_some()
            for _ in range(_ROUNDS):
                await trio.lowlevel.checkpoint()

    async def keep_time(self) -> None:
        """Lets peers become inactive and tombstones end when it is time, which wakes who waits for that."""
        while True:
            self._deadline_came_closer.clear()
            self._sleeping_until = self._registry.next_deadline
            # trio's clock has an offset of its own, so only the distance means the same to both.
            with trio.move_on_after(max(0.0, self._sleeping_until - monotonic())):
                await self._deadline_came_closer.wait()
            with in_turn(self):
                pass
