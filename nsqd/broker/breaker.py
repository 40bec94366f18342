"""A channel's breaker: which share of the last minute's deliveries was buried."""

from __future__ import annotations

from collections import deque
from typing import Final

FEWEST: Final = 20  # deliveries of the last minute; with fewer, a share says nothing
_WINDOW: Final = 60.0  # seconds
_GRAIN: Final = 5.0  # seconds that are counted together


class Breaker:
    """Trips when at least `share` of the last minute's deliveries were buried."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._counts: deque[list[float]] = deque()  # [when it began, deliveries, burials]

    def delivered(self, count: int, now: float) -> None:
        self._present(now)[1] += count

    def buried(self, count: int, now: float) -> None:
        self._present(now)[2] += count

    def has_tripped(self, now: float) -> bool:
        self._present(now)
        delivered = sum([counted[1] for counted in self._counts])
        buried = sum([counted[2] for counted in self._counts])
        return delivered >= FEWEST and buried >= self.share * delivered

    def reset(self) -> None:
        """Begin anew: somebody has looked at the channel and let it go on."""
        self._counts.clear()

    def _present(self, now: float) -> list[float]:
        counts = self._counts
        while counts and counts[0][0] <= now - _WINDOW:
            counts.popleft()
        if not counts or counts[-1][0] + _GRAIN <= now:
            counts.append([now, 0, 0])
        return counts[-1]
