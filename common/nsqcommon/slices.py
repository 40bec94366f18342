"""Splits long work into time slices. For example, a walk over thousands of topics pauses every few milliseconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Final, TypeVar

SLICE: Final = 0.003  # seconds

T = TypeVar("T")


class Slices:
    """Splits one piece of work into time slices. In between, it awaits `give_way`, e.g. `trio.lowlevel.checkpoint`."""

    def __init__(self, give_way: Callable[[], Awaitable[object]]) -> None:
        self._give_way = give_way
        self._ends = monotonic() + SLICE

    async def rest(self) -> None:
        """Give way if the slice is over. Afterwards, check everything again that other tasks may have changed."""
        if monotonic() >= self._ends:
            await self.give_way()

    async def give_way(self) -> None:
        """Give way, and begin a new slice."""
        await self._give_way()
        self._ends = monotonic() + SLICE

    async def all_of(self, items: Iterable[T | None]) -> list[T]:
        """Return the items. If an iterator takes long to find the next one, it may yield None, so that we can rest."""
        found: list[T] = []
        for item in items:
            if item is not None:
                found.append(item)
            await self.rest()
        return found

    async def joined(self, pieces: Iterable[bytes]) -> bytes:
        """Join the pieces, some in each slice, because freeing all of them at the end would take a while."""
        whole: list[bytes] = []
        of_slice: list[bytes] = []
        for piece in pieces:
            of_slice.append(piece)
            if monotonic() >= self._ends:
                whole.append(b"".join(of_slice))
                of_slice.clear()
                await self.rest()
        return b"".join((*whole, *of_slice))
