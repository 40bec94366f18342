"""The subscribers to the events of a consumer or producer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import trio

from nsqclient.core.events import Event

_MOST: Final = 1000  # events that wait for one subscriber; it misses further ones


class Subscribers:
    """Passes each event to all subscribers, without waiting for any of them."""

    def __init__(self) -> None:
        self._channels: list[trio.MemorySendChannel[Event]] = []

    def subscribe(self) -> AsyncIterator[Event]:
        """Return an iterator over the events from now on."""
        send, receive = trio.open_memory_channel[Event](_MOST)
        self._channels.append(send)
        return receive

    def publish(self, event: Event) -> None:
        """Pass an event to all subscribers."""
        for channel in list(self._channels):
            try:
                channel.send_nowait(event)
            except trio.WouldBlock:
                pass
            except trio.BrokenResourceError:  # the subscriber no longer listens
                channel.close()
                self._channels.remove(channel)

    def close(self) -> None:
        """End the iteration of all subscribers."""
        for channel in self._channels:
            channel.close()
        self._channels.clear()
