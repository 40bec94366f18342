"""Rates over about a minute, from counters that are read every few seconds.

For example, something that happens once in ten seconds has, between two readings of five seconds, a rate of 12 a minute
or of 0, by chance. A `Pace` keeps two earlier readings of some counters, and counts rates since the older one:

    older ──────── newer ──────── now      once the newer reading is half a minute old, it becomes the older one

So a rate covers the last 30 to 60 seconds, at the price of two readings for each counter.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_HALF: Final = 30.0  # seconds

Counts = tuple[int, ...]


class Pace(NamedTuple):
    older_at: float
    older: Counts
    newer_at: float
    newer: Counts

    def rates(self, at: float, counts: Counts) -> tuple[float, ...] | None:
        """Return each counter's rate until now; None right at the start."""
        changes = self.changes(at, counts)
        return None if changes is None else tuple(max(change, 0.0) for change in changes)

    def changes(self, at: float, counts: Counts) -> tuple[float, ...] | None:
        """Return each number's change per second, which is negative if it has gone down; None right at the start."""
        seconds = at - self.older_at
        if seconds <= 0:
            return None
        return tuple((now - before) / seconds for now, before in zip(counts, self.older, strict=True))


def pace_after(pace: Pace | None, at: float, counts: Counts) -> Pace:
    """Return the pace with this reading. If the first counter has gone down, it was reset, and so is the pace."""
    if pace is None or counts[0] < pace.newer[0]:
        return Pace(at, counts, at, counts)
    if at - pace.newer_at < _HALF:
        return pace
    return Pace(pace.newer_at, pace.newer, at, counts)
