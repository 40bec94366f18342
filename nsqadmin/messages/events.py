"""The events of a tail and of a search that the viewer hasn't got yet, for server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from nsqadmin.http.event_stream import event
from nsqadmin.messages.model import Message, SearchResult, message_json, progress_json

MOST_SHOWN: Final = 32 * 1024  # bytes of a body that a page shows; the whole body can be downloaded
_MOST_TAILED: Final = 200  # messages of a tail that may wait for the browser


class _Events:
    """Waiting events. `events` yields them until the source has ended or the viewer has left."""

    def __init__(self, most: int | None = None) -> None:
        self._waiting: deque[bytes] = deque(maxlen=most)
        self._arrived = asyncio.Event()
        self._ended = False

    def close(self) -> None:
        self._ended = True
        self._arrived.set()

    def _put(self, piece: bytes) -> None:
        self._waiting.append(piece)
        self._arrived.set()

    def _numbers(self) -> bytes:
        """Return an event with the totals so far, if they have changed since the last one."""
        raise NotImplementedError

    async def _until_ended(self, run: Callable[[], Awaitable[Any]]) -> AsyncIterator[bytes]:
        task = asyncio.ensure_future(run())
        task.add_done_callback(lambda _: self.close())
        try:
            while True:
                while self._waiting:
                    yield self._waiting.popleft()
                if changed := self._numbers():
                    yield changed
                if self._ended:
                    return
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            task.cancel()


class TailEvents(_Events):
    """The events of a tail. If too many messages wait, we skip the oldest and count them."""

    def __init__(self, render: Callable[[Message], Any]) -> None:
        """`render` converts a message to the data of an event."""
        super().__init__(_MOST_TAILED)
        self._render = render
        self._skipped = self._told = 0

    def show(self, message: Message) -> None:
        if len(self._waiting) == _MOST_TAILED:
            self._skipped += 1
        self._put(event("message", self._render(message)))

    def skip(self) -> None:
        self._skipped += 1
        self._arrived.set()

    def trouble(self, node: str, reason: str) -> None:
        self._put(event("trouble", {"node": node, "reason": reason}))

    def _numbers(self) -> bytes:
        if self._skipped == self._told:
            return b""
        self._told = self._skipped
        return event("skipped", {"count": self._skipped})

    async def events(self, run: Callable[[], Awaitable[Any]]) -> AsyncIterator[bytes]:
        yield b": following\n\n"
        async for piece in self._until_ended(run):
            yield piece
        yield event("end", {"skipped": self._skipped})


class SearchEvents(_Events):
    """The events of one step of a search. Its limit bounds the number of waiting hits."""

    def __init__(self, *, raw: bool = False) -> None:
        """With `raw`, bodies are as they were published."""
        super().__init__()
        self._raw = raw
        self._found: SearchResult | None = None

    def report(self, found: SearchResult) -> None:
        self._waiting.extend(
            event("message", message_json(message, most=MOST_SHOWN, raw=self._raw)) for message in found.messages
        )
        self._found = found
        self._arrived.set()

    def _numbers(self) -> bytes:
        found, self._found = self._found, None
        return event("progress", progress_json(found)) if found is not None else b""

    async def events(self, run: Callable[[], Awaitable[SearchResult]]) -> AsyncIterator[bytes]:
        ended: list[SearchResult] = []

        async def search() -> None:
            ended.append(await run())

        async for piece in self._until_ended(search):
            yield piece
        for found in ended:
            yield event("end", progress_json(found))
