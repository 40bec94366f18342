"""How long finished segments are kept. What a channel owes is no question of retention: that stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FASTEST: Final = 2  # how much faster than time passes a clock that was set forward is caught up with


@dataclass(frozen=True, slots=True)
class Retention:
    """Zero of both: nothing is kept. With both set, a segment goes when either says so."""

    time: int = 0  # nanoseconds that the newest message of a segment is kept
    bytes: int = 0  # what may lie behind a segment until it goes

    def __bool__(self) -> bool:
        return bool(self.time or self.bytes)

    def wants(self, newest: int, bytes_behind: int, timestamp: int) -> bool:
        """Whether a segment stays; `newest` is when its newest message was published."""
        if not self:
            return False
        is_old = self.time > 0 and timestamp - newest >= self.time
        is_far = self.bytes > 0 and bytes_behind > self.bytes
        return not (is_old or is_far)


NOTHING_KEPT: Final = Retention()


class AgeClock:
    """The wall clock by which ages are told, in nanoseconds.

    A step forward is caught up with slowly: a clock that was wrong for an hour lets things go an hour early at most,
    where believing it would have emptied the disk at once. A step back only keeps things for longer.
    """

    def __init__(self, wall: Callable[[], int], clock: Callable[[], float]) -> None:
        self._wall = wall
        self._clock = clock
        self._timestamp = wall()
        self._told_at = clock()

    def __call__(self) -> int:
        now = self._clock()
        furthest = self._timestamp + int((now - self._told_at) * _FASTEST * 1_000_000_000)
        self._timestamp, self._told_at = min(self._wall(), furthest), now
        return self._timestamp
