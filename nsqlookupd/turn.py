"""One turn of nsqlookupd. Peers and operators change the registry between `begin` and `finish`. Turns never overlap."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Final

import trio

from nsqcommon.turn import in_turn
from nsqcommon.wakeup import Wakeup

if TYPE_CHECKING:
    from nsqlookupd.registry import Registry


_SLICE: Final = 0.001  # seconds of clearing before other tasks run
_ROUNDS: Final = 5  # turns of the event loop between two slices: an HTTP answer takes that many


class Turn:
    def __init__(self, registry: Registry, flush: Callable[[], None]) -> None:
        """`flush` is the poller's: it sends the bytes queued for clients."""
        self._registry = registry
        self._flush = flush
        self._sleeping_until = 0.0
        self._deadline_came_closer = Wakeup()
        self._somebody_has_left = Wakeup()

    def begin(self) -> float:
        return self.take_time()

    def take_time(self) -> float:
        """Pass the time to the registry, and return it, in monotonic seconds."""
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
        """Clear the registrations of departed peers, in slices, so that other clients are served in between."""
        while True:
            await self._somebody_has_left.wait()
            with in_turn(self) as now:
                while self._registry.has_departed and monotonic() < now + _SLICE:
                    self._registry.clear_some()
            for _ in range(_ROUNDS):
                await trio.lowlevel.checkpoint()

    async def keep_time(self) -> None:
        """Expire peers and tombstones on time, because that wakes waiting `/lookup`s."""
        while True:
            self._deadline_came_closer.clear()
            self._sleeping_until = self._registry.next_deadline
            # trio's clock has its own offset, so only differences of times are the same on both.
            with trio.move_on_after(max(0.0, self._sleeping_until - monotonic())):
                await self._deadline_came_closer.wait()
            with in_turn(self):
                pass
