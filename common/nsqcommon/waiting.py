"""HTTP requests that wait for a change. While it waits, a request costs a future and no CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from nsqcommon.durations import parse_duration, seconds
from nsqcommon.http_api import HttpError


class Waiting:
    """The requests that wait for a change. Each waits for a change of one name, such as a topic.

    It runs on the web server's asyncio loop. A wait ends at the latest with its connection or its timeout.
    """

    def __init__(self) -> None:
        self._futures: dict[str, set[asyncio.Future[None]]] = {}
        self._is_released = False

    def __len__(self) -> int:
        return sum(map(len, self._futures.values()))

    @property
    def is_released(self) -> bool:
        return self._is_released

    def wake(self, name: str) -> None:
        """Wake the requests that wait for a change of this name."""
        for future in self._futures.pop(name, ()):
            if not future.done():
                future.set_result(None)

    def wake_all(self) -> None:
        """Wake all waiting requests, after a change that affects every name."""
        for name in tuple(self._futures):
            self.wake(name)

    def release(self) -> None:
        """Wake all waiting requests, and let no others wait, because the daemon is stopping."""
        self._is_released = True
        self.wake_all()

    async def wait_for_change(
        self, name: str, *, seconds: float, gone: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Wait until `wake` is called for this name, the time is up, or `gone` returns."""
        if self._is_released:
            return
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        leaving = [asyncio.ensure_future(gone())] if gone is not None else []
        self._futures.setdefault(name, set()).add(changed)
        try:
            await asyncio.wait((changed, *leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in leaving:
                future.cancel()
            self._forget(name, changed)

    def _forget(self, name: str, future: asyncio.Future[None]) -> None:
        futures = self._futures.get(name)
        if futures is not None:
            futures.discard(future)
            if not futures:
                del self._futures[name]


def wait_argument(arguments: Mapping[str, str]) -> float:
    """Return the argument `wait=` of an endpoint that can wait, in seconds. Raises HttpError if it's invalid."""
    try:
        wait = parse_duration(arguments["wait"])
    except ValueError:
        wait = -1
    if wait < 0:
        raise HttpError(400, "INVALID_ARG_WAIT")
    return seconds(wait)
