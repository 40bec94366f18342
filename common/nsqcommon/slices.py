"""Long work in slices: whoever walks over thousands of things gives way to others every few milliseconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Final, TypeVar

SLICE: Final = 0.003  # seconds

T = TypeVar("T")


class Slices:
    """The slices of one piece of work. `give_way` lets other tasks run: `trio.lowlevel.checkpoint`, for example."""

    def __init__(self, give_way: Callable[[], Awaitable[object]]) -> None:
        self._give_way = give_way
        self._ends = monotonic() + SLICE

    async def rest(self) -> None:
        """Give way if the slice is over. Whatever others may change has to be looked at again afterwards."""
        if monotonic() >= self._ends:
            await self.give_way()

    async def give_way(self) -> None:
        """Give way, and begin a new slice."""
        await self._give_way()
        self._ends = monotonic() + SLICE

    async def all_of(self, items: Iterable[T | None]) -> list[T]:
        """Return the items. A None among them is only an opportunity to rest."""
        found: list[T] = []
        for item in items:
            if item is not None:
                found.append(item)
            await self.rest()
        return found

    async def joined(self, pieces: Iterable[bytes]) -> bytes:
        """Return the pieces as one. Those of a slice are joined with it: freeing all at the end would take a while."""
        whole: list[bytes] = []
        of_slice: list[bytes] = []
        for piece in pieces:
            of_slice.append(piece)
            if monotonic() >= self._ends:
                whole.append(b"".join(of_slice))
                of_slice.clear()
                await self.rest()
        return b"".join((*whole, *of_slice))
