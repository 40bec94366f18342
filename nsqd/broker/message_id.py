"""Message ids: one counter for the whole daemon, never going back.

An id is a 64-bit number: the node id in the top 10 bits, then a counter that starts from the clock (in microseconds)
and from then on only counts up. The data path keeps a reservation ahead of the counter, so that neither a crash nor a
clock that was set back can make an id appear twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

COUNTER_BITS: Final = 54
RESERVATION: Final = 1 << 24  # 16.7 million ids: one small synced write each, so seconds apart even at full speed


class IdSource:
    def __init__(self, node_id: int, *, timestamp: int, reserved: int, reserve: Callable[[int], None]) -> None:
        self._node = node_id << COUNTER_BITS
        self._next = max(timestamp // 1000, reserved)
        self._reserve = reserve
        self._renew_at = 0
        self._renew()

    def take(self, count: int) -> int:
        """Return the first of `count` consecutive ids."""
        first = self._next
        self._next = first + count
        if self._next > self._renew_at:
            self._renew()
        return self._node | first

    def _renew(self) -> None:
        """Reserve more ids, early enough to refuse publishing before any id is given out that could come again."""
        self._renew_at = self._next + RESERVATION // 2
        self._reserve(self._next + RESERVATION)
