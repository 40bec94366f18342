"""Bounds what roots and restores take of the line to the store, so that slots and other programs have the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from threading import Lock
from typing import Final

_LONGEST_PAUSE: Final = 0.25  # seconds


class RateLimit:
    """Limits the bytes a second of background requests, for which no publisher waits. Threads may share it."""

    def __init__(self, rate: float) -> None:
        """`rate`: in bytes per second."""
        self._rate = rate
        self._lock = Lock()
        self._free_at = -inf

    def start(self, size: int, now: float) -> float:
        """Return when a request with this many bytes may start, and have the ones after it wait as long as it takes."""
        with self._lock:
            start = max(now, self._free_at)
            self._free_at = start + size / self._rate
            return start

    def pauses(self, size: int, clock: Callable[[], float]) -> Iterator[float]:
        """Yield how long to pause, again and again, until a request with this many bytes may start.

        Each pause is short, so that you can look in between whether to give up.
        """
        start = self.start(size, clock())
        while (left := start - clock()) > 0:
            yield min(left, _LONGEST_PAUSE)
