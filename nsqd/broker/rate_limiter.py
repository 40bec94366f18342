"""How fast a channel may deliver: a bucket of tokens, one for each delivery, that fills at the rate of the policy.

The bucket holds what may be delivered in one second, so a channel that was idle may deliver that much at once. Nothing
is lost by looking late: the next look finds all tokens that have come since, up to that second.
"""

from __future__ import annotations

from typing import Final

_GRAIN: Final = 0.01  # seconds between two looks at a channel that is held back, if its rate fills more than a token
_ROUNDING: Final = 1e-6  # tokens; sums of floats come out a little below


class RateLimiter:
    __slots__ = ("_filled_at", "_most", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate  # tokens a second
        self._most = max(1.0, rate)
        self._tokens = self._most
        self._filled_at = now

    def allowed(self, now: float) -> int:
        """Return how many messages may be delivered now."""
        self._tokens = min(self._most, self._tokens + (now - self._filled_at) * self.rate)
        self._filled_at = now
        return max(0, int(self._tokens + _ROUNDING))

    def spend(self, count: int) -> None:
        self._tokens -= count

    def next_at(self, now: float) -> float:
        """Return when some more may be delivered: at a high rate as many as come in a hundredth of a second."""
        wanted = max(1.0, self.rate * _GRAIN)
        return now + max(0.0, wanted - self._tokens) / self.rate
