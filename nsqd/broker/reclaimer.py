"""Large containers that nobody needs any more: they are emptied some thousands of entries in each turn.

The interpreter frees a list of a million integers at once, which takes 20 to 90 ms. So where a channel or a topic is
emptied or deleted, it begins with new containers, and the former ones come here:

    clear() ──► leftovers ──► 5,000 entries at the end of each turn ──► gone

While there are some, a task begins turns (`reclaim_memory` in nsqd/timers.py): an idle broker gives memory back, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

MANY: Final = 1_000  # entries; fewer are freed at once in some microseconds
FREED_IN_TURN: Final = 5_000  # entries; a fraction of a millisecond
_COST_OF_CONTAINER: Final = 10  # as that of so many entries

Block = dict[int, int] | list[int] | list[tuple[int, int, int]] | list[str]
Container = list[Any] | deque[Any] | dict[Any, Any] | set[Any]


class Reclaimer:
    """What is to be freed."""

    __slots__ = ("_blocks", "_containers", "is_empty")

    def __init__(self) -> None:
        self.is_empty = True  # every turn asks twice, so it is no property
        self._containers: list[Container] = []
        self._blocks: list[Block] = []

    @property
    def entries(self) -> int:
        """How many entries are still to be freed."""
        return sum([len(it) for it in self._containers]) + sum([len(it) for it in self._blocks])

    def add(self, *containers: Container) -> None:
        """Take containers that nobody else uses: they are emptied."""
        self._containers += [it for it in containers if it]
        self._note_whether_empty()

    def add_blocks(self, blocks: Iterable[Block]) -> None:
        """Take small containers that somebody may still be reading. Each is let go as a whole."""
        self._blocks += blocks
        self._note_whether_empty()

    def free_some(self) -> None:
        """Free the entries of one turn."""
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
    """Gives you an empty list, to copy very many entries into, that is not new.

    The garbage collector goes over a new list of a million entries twice, which takes some 20 ms each time, whatever the
    turn is about in which it runs. It leaves an old list alone, whatever you add. So the list waits here for its use,
    usually for minutes.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: list[Any] = []

    def take(self) -> list[Any]:
        taken, self._next = self._next, []
        return taken


def _remove(container: Container, count: int) -> None:
    """Remove so many entries, whichever are the cheapest."""
    if isinstance(container, list):
        del container[len(container) - count :]
    elif isinstance(container, dict):
        for _ in range(count):
            container.popitem()
    else:
        for _ in range(count):
            container.pop()
