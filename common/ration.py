"""How much of a storm gets into the log: the first lines of each while, and the number of those that were left out."""

from __future__ import annotations

from math import inf
from typing import Final

_LINES: Final = 10
_WHILE: Final = 10.0  # seconds


class Ration:
    """The lines that one thing may cause, such as a connection. Where `left_out` is not 0, the caller logs `told()`."""

    __slots__ = ("_ends", "_lines", "left_out")

    def __init__(self) -> None:
        self.left_out = 0  # since this was last told
        self._ends = -inf
        self._lines = 0

    def allows(self, now: float) -> bool:
        """Whether one more line is to be logged; if not, it is counted."""
        if now >= self._ends:
            self._ends = now + _WHILE
            self._lines = 0
        self._lines += 1
        if self._lines > _LINES:
            self.left_out += 1
            return False
        return True

    def told(self) -> int:
        """Return how many were left out, and begin to count anew."""
        left_out, self.left_out = self.left_out, 0
        return left_out
