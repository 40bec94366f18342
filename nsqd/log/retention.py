"""Retention: how long to keep finished segments. segment_removal.py removes them afterwards.

Unfinished messages always stay, whatever the retention is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FASTEST: Final = 2  # after a clock was set forward, ages catch up at twice the speed of time


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits beyond which we drop a segment: exceeding either one is enough. If both are 0, nothing is kept."""

    time: int = 0  # nanoseconds; drop a segment when its newest message is this old
    bytes: int = 0  # drop a segment when the segments after it have more bytes than this

    def __bool__(self) -> bool:
        return bool(self.time or self.bytes)

    def wants(self, newest: int, bytes_behind: int, timestamp: int) -> bool:
        """Return whether a segment stays. `newest` is the publish time of its newest message."""
        if not self:
            return False
        is_old = self.time > 0 and timestamp - newest >= self.time
        is_far = self.bytes > 0 and bytes_behind > self.bytes
        return not (is_old or is_far)


class AgeClock:
    """A wall clock for computing ages, in nanoseconds. It catches up slowly if the system's clock jumps forward.

    For example, someone sets the clock a year ahead and corrects it an hour later. If we believed it, every segment
    would look a year old, and we'd delete them all right away. Instead, this clock runs at twice the speed of time, so
    after that hour it's an hour ahead, and we drop segments at most an hour early. If the clock is set back, segments
    just stay longer.
    """

    def __init__(self, wall: Callable[[], int], clock: Callable[[], float]) -> None:
        self._wall = wall
        self._clock = clock
        self._timestamp = wall()
        self._updated_at = clock()

    def __call__(self) -> int:
        now = self._clock()
        furthest = self._timestamp + int((now - self._updated_at) * _FASTEST * 1_000_000_000)
        self._timestamp, self._updated_at = min(self._wall(), furthest), now
        return self._timestamp
