"""When a slot starts, and how much may be under way.

Each slot is a request, and a request costs the same whatever is in it. If a slot left as soon as something waits, the
store's latency would decide how many leave: with answers after 5 ms, one publisher that waits for each OK would cause 200
requests a second. So starts are spaced, always:

    a publisher waits     at least `interval` between two starts
    no publisher waits    at least `delay`
    8 MiB wait            at once, because such a slot is worth its request

The first publish after a pause leaves at once, since the last start was long ago.

Large objects share the line to the store. If eight slots of 8 MiB are under way on a line of 4 Mbit/s, each needs two
minutes. Their requests end after half a minute, so all of them are repeated, and none is ever stored. So `LineRate` measures
how quickly large objects arrive, and lets no more start than should arrive in some seconds. A single one may always start,
so the slowest line that works brings 8 MiB over within the time of a request.
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


LARGE: Final = 256 << 10  # bytes from which an object's time is that of the line, and not of the store
HORIZON: Final = 10.0  # seconds in which all that is under way should arrive: a third of what a request has


class LineRate:
    """How quickly large objects have arrived lately, and how much may be under way by that."""

    def __init__(self) -> None:
        self._rate = inf  # bytes per second of one request; inf: not measured

    def arrived(self, size: int, seconds: float) -> None:
        """Note that a request with this many bytes took this long."""
        if size >= LARGE:
            self._rate = size / max(seconds, 0.001)

    def failed(self, size: int, seconds: float) -> None:
        """Note that a request had no success. If it took long, the line may be slower than we thought."""
        if size >= LARGE:
            self._rate = min(self._rate, size / max(seconds, 0.001))

    def may_start(self, size: int, *, under_way: int) -> bool:
        """Return whether a request with this many bytes may start, while `under_way` bytes are."""
        return size < LARGE or not under_way or under_way + size <= self._rate * HORIZON

    def time_for(self, size: int) -> float:
        """Return how long this many bytes should take; `inf` if no line was measured."""
        return size / self._rate if self._rate < inf else inf


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
