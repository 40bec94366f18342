"""Those who follow the events of a consumer or producer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import trio

from nsqclient.events import Event

_MOST: Final = 1000  # that wait for one subscriber; what comes beyond it misses


class Subscribers:
    def __init__(self) -> None:
        self._channels: list[trio.MemorySendChannel[Event]] = []

    def subscribe(self) -> AsyncIterator[Event]:
        send, receive = trio.open_memory_channel[Event](_MOST)
        self._channels.append(send)
        return receive

    def publish(self, event: Event) -> None:
        for channel in list(self._channels):
            try:
                channel.send_nowait(event)
            except trio.WouldBlock:
                pass
            except trio.BrokenResourceError:  # nobody listens any more
                channel.close()
                self._channels.remove(channel)

    def close(self) -> None:
        """Their iterations end."""
        for channel in self._channels:
            channel.close()
        self._channels.clear()
