"""How long finished segments are kept; segment_removal.py removes them then.

Unfinished messages always stay, whatever the retention is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FASTEST: Final = 2  # times as fast as time passes: how fast ages follow a clock that was set forward


@dataclass(frozen=True, slots=True)
class Retention:
    """If both limits are 0, nothing is kept. If both are set, a segment goes when either is exceeded."""

    time: int = 0  # nanoseconds that the newest message of a segment is kept
    bytes: int = 0  # a segment goes when more bytes than this lie behind it

    def __bool__(self) -> bool:
        return bool(self.time or self.bytes)

    def wants(self, newest: int, bytes_behind: int, timestamp: int) -> bool:
        """Return whether a segment stays; `newest` is when its newest message was published."""
        if not self:
            return False
        is_old = self.time > 0 and timestamp - newest >= self.time
        is_far = self.bytes > 0 and bytes_behind > self.bytes
        return not (is_old or is_far)


class AgeClock:
    """The wall clock from which ages are counted, in nanoseconds.

    It follows a step forward slowly, at twice the speed of time. A clock that is wrong for an hour thus removes
    segments at most an hour early, where believing it would empty the disk at once. A step back only keeps segments for
    longer.
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
