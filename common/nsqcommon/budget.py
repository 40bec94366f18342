"""A limit on the connections of one listening address, so that a full one leaves descriptors for the others."""

from __future__ import annotations

import logging

import trio

from nsqcommon.log_rate_limit import LogRateLimit

log = logging.getLogger(__name__)


class Budget:
    """At most this many connections at a time; further ones wait in the listener's backlog until one has been closed.

    Call `take` when a connection has been accepted and `give_back` when it has been closed, whoever owns it by then.
    All of it belongs to one event loop: call it from no other thread.
    """

    def __init__(self, most: int, door: str) -> None:
        self.taken = 0
        self.most = max(1, most)
        self._door = door
        self._has_room = trio.Event()  # replaced once it has been set; several listeners may wait for it
        self._lines = LogRateLimit()

    def take(self) -> None:
        self.taken += 1

    def give_back(self) -> None:
        self.taken -= 1
        self._has_room.set()

    def has_room(self, count: int) -> bool:
        return self.taken + count <= self.most

    async def wait_for_room(self) -> None:
        """Return when one more connection may be accepted; cancelling it takes nothing from the budget."""
        while not self.has_room(1):
            # In a flood each connection that closes is replaced at once, so this would be logged for every one of them.
            if self._lines.allows(trio.current_time()):
                log.warning("%s: %d connections: no more are accepted until some have closed", self._door, self.taken)
            if self._has_room.is_set():
                self._has_room = trio.Event()
            await self._has_room.wait()
