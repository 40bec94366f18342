"""CORE: limit how many messages are published per second."""

from __future__ import annotations

from typing import Final

_NOTHING: Final = 1e-6  # rounding error of adding fractions


class Throttle:
    """A balance that starts at 1 and grows by `rate` per second up to `rate`. Taking many at once may overdraw it."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._balance = 1.0
        self._at = now

    def take(self, count: int, now: float) -> float:
        """Take `count`, and return the seconds to wait before taking more."""
        self._balance = min(max(self._rate, 1.0), self._balance + (now - self._at) * self._rate) - count
        self._at = now
        return (1 - self._balance) / self._rate if self._balance < _NOTHING else 0.0
