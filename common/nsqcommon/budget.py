"""Limits the connections of each listening address, so that a crowd at one leaves descriptors for the others."""

from __future__ import annotations

import logging

import trio

from nsqcommon.log_rate_limit import LogRateLimit

log = logging.getLogger(__name__)


class Budget:
    """Allows `most` connections at a time. Others wait in the listener's backlog until one closes.

    Call `take` after you accept a connection and `give_back` after it has closed, even if it has another owner by then.
    Not thread-safe: use it within one event loop.
    """

    def __init__(self, most: int, door: str) -> None:
        self.taken = 0
        self.most = max(1, most)
        self._door = door
        self._has_room = trio.Event()  # set only once, then replaced; several listeners may wait for it
        self._lines = LogRateLimit()

    def take(self) -> None:
        self.taken += 1

    def give_back(self) -> None:
        self.taken -= 1
        self._has_room.set()

    def has_room(self, count: int) -> bool:
        return self.taken + count <= self.most

    async def wait_for_room(self) -> None:
        """Wait until you may accept another connection. This reserves nothing, so you can cancel it."""
        while not self.has_room(1):
            # In a flood, a new connection replaces each one that closes, and we would log this every time.
            if self._lines.allows(trio.current_time()):
                log.warning(
                    "%s: at its limit of %d connections, not accepting more until some close", self._door, self.taken
                )
            if self._has_room.is_set():
                self._has_room = trio.Event()
            await self._has_room.wait()
