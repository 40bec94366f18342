"""Requests that wait for a topic's producers to change (docs/decisions/0002). Waiting costs a future each, and no CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Waiting:
    """Who waits for which topic. Without bound: a waiter is an HTTP connection, and ends with it or with its time."""

    def __init__(self) -> None:
        self._futures: dict[str, set[asyncio.Future[None]]] = {}
        self._is_released = False

    def __len__(self) -> int:
        return sum(map(len, self._futures.values()))

    def wake(self, topic: str) -> None:
        """The topic's producers have changed."""
        for future in self._futures.pop(topic, ()):
            if not future.done():
                future.set_result(None)

    def release(self) -> None:
        """Nobody waits any more, ever: we stop."""
        self._is_released = True
        for topic in tuple(self._futures):
            self.wake(topic)

    async def wait_for_change(self, topic: str, *, seconds: float, gone: Callable[[], Awaitable[None]]) -> None:
        """Returns when `wake` was called for this topic, when the time is over, or when `gone` returns."""
        if self._is_released:
            return
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        leaving = asyncio.ensure_future(gone())
        self._futures.setdefault(topic, set()).add(changed)
        try:
            await asyncio.wait((changed, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            self._forget(topic, changed)

    def _forget(self, topic: str, future: asyncio.Future[None]) -> None:
        futures = self._futures.get(topic)
        if futures is not None:
            futures.discard(future)
            if not futures:
                del self._futures[topic]
