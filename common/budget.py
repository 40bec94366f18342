"""How many connections may come through a door, so that one that is full leaves descriptors for the others."""

from __future__ import annotations

import logging

import trio

from common.ration import Ration

log = logging.getLogger(__name__)


class Budget:
    """So many connections at a time; further ones wait in the listener's backlog until one has been closed.

    Call `take` when a connection has been accepted, and `give_back` when it has been closed, whoever owns it by then.
    """

    def __init__(self, most: int, door: str) -> None:
        self.taken = 0
        self.most = max(1, most)
        self._door = door
        self._has_room = trio.Event()  # made anew when it has been set: several listeners may wait for it
        self._lines = Ration()

    def take(self) -> None:
        self.taken += 1

    def give_back(self) -> None:
        self.taken -= 1
        self._has_room.set()

    def has_room(self, count: int) -> bool:
        return self.taken + count <= self.most

    async def wait_for_room(self) -> None:
        while not self.has_room(1):
            # In a flood the door is full again after each connection that has gone.
            if self._lines.allows(trio.current_time()):
                log.warning("%s: %d connections: no more are accepted until some have gone", self._door, self.taken)
            if self._has_room.is_set():
                self._has_room = trio.Event()
            await self._has_room.wait()
