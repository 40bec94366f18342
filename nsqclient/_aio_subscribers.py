"""The subscribers to the events of a consumer or producer on asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakSet

if TYPE_CHECKING:
    from nsqclient.core.events import Event

_MOST: Final = 1000  # events that wait for one subscriber; it misses further ones


class Subscribers:
    """Passes each event to all subscribers, without waiting for any of them."""

    def __init__(self) -> None:
        self._all: WeakSet[Subscriber] = WeakSet()  # one that nobody iterates over any more goes by itself
        self._is_closed = False

    def subscribe(self) -> Subscriber:
        """Return an iterator over the events from now on."""
        subscriber = Subscriber()
        self._all.add(subscriber)
        if self._is_closed:
            subscriber.put(None)
        return subscriber

    def publish(self, event: Event) -> None:
        """Pass an event to all subscribers."""
        for subscriber in list(self._all):
            subscriber.put(event)

    def close(self) -> None:
        """End the iteration of all subscribers, once they have the events from before."""
        self._is_closed = True
        for subscriber in list(self._all):
            subscriber.put(None)


class Subscriber:
    """Iterates over events."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._is_over = False

    def put(self, event: Event | None) -> None:
        """Add an event, or the end."""
        if event is None or self._queue.qsize() < _MOST:
            self._queue.put_nowait(event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = None if self._is_over else await self._queue.get()
        if event is None:
            self._is_over = True
            raise StopAsyncIteration
        return event
