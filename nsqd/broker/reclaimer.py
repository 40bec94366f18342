"""Frees large containers piece by piece, a few thousand entries per turn.

When Python frees a list of a million integers, the broker stalls for 20 to 90 ms. So a channel or topic that is emptied
or deleted starts with new containers, and hands the old ones to the reclaimer:

    clear() ──► reclaimer ──► 5,000 entries at the end of each turn ──► gone

Until it is empty, a task starts turns (`reclaim_memory` in nsqd/timers.py), so that even an idle broker frees memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

MANY: Final = 1_000  # entries; freeing fewer takes only microseconds
FREED_IN_TURN: Final = 5_000  # entries; takes a fraction of a millisecond
_COST_OF_CONTAINER: Final = 10  # freeing a container costs as much as freeing this many entries

Block = dict[int, int] | list[int] | list[tuple[int, int, int]] | list[str]
Container = list[Any] | deque[Any] | dict[Any, Any] | set[Any]


class Reclaimer:
    """The containers that are still to be freed."""

    __slots__ = ("_blocks", "_containers", "is_empty")

    def __init__(self) -> None:
        self.is_empty = True  # an attribute and not a property, because each turn reads it twice
        self._containers: list[Container] = []
        self._blocks: list[Block] = []

    @property
    def entries(self) -> int:
        """The number of entries that are still to be freed."""
        return sum([len(it) for it in self._containers]) + sum([len(it) for it in self._blocks])

    def add(self, *containers: Container) -> None:
        """Take containers and empty them. They must not be in use elsewhere."""
        self._containers += [it for it in containers if it]
        self._note_whether_empty()

    def add_blocks(self, blocks: Iterable[Block]) -> None:
        """Take small containers that may still be read elsewhere. They are not emptied, only dropped one by one."""
        self._blocks += blocks
        self._note_whether_empty()

    def free_some(self) -> None:
        """Free one turn's worth of entries."""
        left = FREED_IN_TURN
        while left > 0 and self._blocks:
            left -= len(self._blocks.pop()) + _COST_OF_CONTAINER
        while left > 0 and self._containers:
            container = self._containers[-1]
            count = min(left, len(container))
            _remove(container, count)
            left -= count + _COST_OF_CONTAINER
            if not container:
                self._containers.pop()
        self._note_whether_empty()

    def _note_whether_empty(self) -> None:
        self.is_empty = not self._containers and not self._blocks


class SpareList:
    """Provides an empty list that is already old, for copying very many entries into.

    Python's garbage collector traverses a new list of a million entries twice, for 20 ms each time, in whatever turn it
    happens to run. Once a list is old, it is left alone, even if you fill it only then. So we create the list early and
    let it age here, usually for minutes.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: list[Any] = []

    def take(self) -> list[Any]:
        taken, self._next = self._next, []
        return taken


def _remove(container: Container, count: int) -> None:
    """Remove `count` entries, whichever are cheapest to remove."""
    if isinstance(container, list):
        del container[len(container) - count :]
    elif isinstance(container, dict):
        for _ in range(count):
            container.popitem()
    else:
        for _ in range(count):
            container.pop()
