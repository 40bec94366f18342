"""Message ids: one counter for the whole daemon, which never goes back.

An id has 64 bits: the node id in the top 10, and then a counter. The counter starts at the clock's microseconds and
only counts up. The data path stores a reservation: all ids that we give out are below it, and after a restart the
counter starts no lower. So no id is used twice, even after a crash or if the clock is set back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

COUNTER_BITS: Final = 54
RESERVATION: Final = 1 << 24  # 16.7 million ids: even at full speed, the small synced writes are seconds apart


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
        """Reserve more ids while half of the last reservation is left.

        If that fails, we can still refuse publishes before we run out of reserved ids.
        """
        self._renew_at = self._next + RESERVATION // 2
        self._reserve(self._next + RESERVATION)
