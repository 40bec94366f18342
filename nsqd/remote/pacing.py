"""When a slot starts.

Each slot is a request, and a request costs the same whatever is in it. If a slot left as soon as something waits, the
store's latency would decide how many leave: with answers after 5 ms, one publisher that waits for each OK would cause 200
requests a second. So starts are spaced, always:

    a publisher waits     at least `interval` between two starts
    no publisher waits    at least `delay`
    8 MiB wait            at once, because such a slot is worth its request

The first publish after a pause leaves at once, since the last start was long ago.
"""

from __future__ import annotations

from math import inf
from typing import Final

DEPTH: Final = 8  # slots under way
FULL_SLOT: Final = 8 << 20  # bytes
SLOW_FOR: Final = 10.0  # seconds in which starts are halved after the store has asked for fewer
MOST_HALVINGS: Final = 6
LONGEST_PAUSE: Final = 2.0
SHORTEST_PAUSE: Final = 0.05


class Pacing:
    """Spaces the starts of slots. Times are in seconds, of any clock that doesn't jump."""

    def __init__(self, *, interval: float, delay: float, depth: int = DEPTH, full: int = FULL_SLOT) -> None:
        """Let a slot start at once when `full` bytes wait."""
        self.interval = interval
        self.delay = delay
        self.depth = depth
        self.full = full
        self._last_start = -inf
        self._halvings = 0
        self._slow_until = -inf

    def next_start(self, now: float, *, waiting_bytes: int, is_awaited: bool, under_way: int) -> float:
        """Return when the next slot may start, as things are; `inf` if something else has to happen first.

        `waiting_bytes`: of what isn't in a slot yet; an operation without bytes counts as one. `under_way`: slots that
        the store hasn't answered.
        """
        if not waiting_bytes or under_way >= self.depth:
            return inf
        if waiting_bytes >= self.full:
            return now
        return max(now, self._last_start + self._space(now, is_awaited=is_awaited))

    def started(self, now: float) -> None:
        self._last_start = now

    def slow_down(self, now: float) -> None:
        """Halve the starts for a while, because the store has asked for fewer requests."""
        self._halvings = min(self._halvings + 1, MOST_HALVINGS) if now < self._slow_until else 1
        self._slow_until = now + SLOW_FOR

    def _space(self, now: float, *, is_awaited: bool) -> float:
        space = self.interval if is_awaited else self.delay
        return space * 2**self._halvings if now < self._slow_until else space


def pause_before(attempt: int, chance: float) -> float:
    """Return how long to wait before this attempt, 1 being the first repetition. `chance` lies in [0, 1).

    Pauses double from 0.05 to 2 seconds. Each is between half of that and all of it, so that slots which failed together
    are not sent together again.
    """
    longest = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(attempt, 10))
    return longest * (0.5 + chance / 2)
