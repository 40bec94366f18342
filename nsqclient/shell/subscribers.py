"""The subscribers to the events of a consumer or producer."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakSet

if TYPE_CHECKING:
    from nsqclient.core.events import Event
    from nsqclient.shell.runtime import Runtime

_MOST: Final = 1000  # events that wait for one subscriber; further ones are dropped


class Subscribers:
    """Passes each event to all subscribers, without waiting for any of them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._all: WeakSet[Subscriber] = WeakSet()  # weak, so an abandoned iterator goes by itself
        self._is_closed = False

    def subscribe(self) -> Subscriber:
        """Return an iterator over the events from now on."""
        subscriber = Subscriber(self._runtime)
        self._all.add(subscriber)
        if self._is_closed:
            subscriber.close()
        return subscriber

    def publish(self, event: Event) -> None:
        """Pass an event to all subscribers."""
        for subscriber in list(self._all):
            subscriber.put(event)

    def close(self) -> None:
        """End the iteration of all subscribers after their waiting events."""
        self._is_closed = True
        for subscriber in list(self._all):
            subscriber.close()


class Subscriber:
    """Iterates over events."""

    def __init__(self, runtime: Runtime) -> None:
        self._checkpoint = runtime.checkpoint
        self._lot = runtime.parking_lot()
        self._events: deque[Event] = deque()
        self._is_closed = False

    def put(self, event: Event) -> None:
        """Add an event."""
        if len(self._events) < _MOST:
            self._events.append(event)
            self._lot.unpark()

    def close(self) -> None:
        """End the iteration after the waiting events."""
        self._is_closed = True
        self._lot.unpark_all()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        await self._checkpoint()
        while not self._events:
            if self._is_closed:
                raise StopAsyncIteration
            await self._lot.park()
        return self._events.popleft()
