"""How many connections may come through a door, so that one that is full leaves descriptors for the others."""

from __future__ import annotations

import logging

import trio

from common.ration import Ration

log = logging.getLogger(__name__)


class Budget:
    """Places for connections. More of them wait in the listener's backlog until somebody goes.

    Whoever accepts a connection calls `take`, and `give_back` goes with the connection, to be called when it is closed.
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
