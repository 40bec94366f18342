"""A rate limit for log lines with one cause: log the first few in each period, and count the rest."""

from __future__ import annotations

from math import inf
from typing import Final

_LINES: Final = 10  # in each period
_PERIOD: Final = 10.0  # seconds


class LogRateLimit:
    """Limits the log lines of one cause, such as a connection.

    When a line is allowed and `left_out` isn't 0, also log the number that `take_suppressed()` returns.
    """

    __slots__ = ("_ends", "_lines", "left_out")

    def __init__(self) -> None:
        self.left_out = 0  # lines since `take_suppressed` was last called
        self._ends = -inf  # of the current period
        self._lines = 0

    def allows(self, now: float) -> bool:
        """Return whether to log another line. If not, count it as left out."""
        if now >= self._ends:
            self._ends = now + _PERIOD
            self._lines = 0
        self._lines += 1
        if self._lines > _LINES:
            self.left_out += 1
            return False
        return True

    def take_suppressed(self) -> int:
        """Return the number of lines that were left out, and reset the count."""
        left_out, self.left_out = self.left_out, 0
        return left_out
