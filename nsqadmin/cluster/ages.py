"""How long a channel's next message has waited, told from counters that every nsqd has.

A channel counts what comes in. With a depth of d and a count of n, the next message is about the (n - d)th, and it came
when the count passed that number: we have seen the count at each sample, so we know between which two.
Requeued messages make it look older than it is by as much as they are many; a lag in time is worth that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Final

_MOST: Final = 600  # points of one channel; then every second one goes

_Points = deque[tuple[float, int]]


class Ages:
    def __init__(self) -> None:
        self._points: dict[tuple[str, str], _Points] = {}
        self._now = self._before = 0.0

    def begin(self, now: float) -> None:
        """Another sample. A channel of which nothing is said in it is as it was."""
        self._before, self._now = self._now, now

    def age(self, topic: str, channel: str, *, depth: int, message_count: int) -> tuple[float | None, bool]:
        """The age, and whether it is only a lower bound; None where nothing waits."""
        now = self._now
        points = self._points.setdefault((topic, channel), deque())
        if points and points[-1][0] < self._before:
            points.append((self._before, points[-1][1]))
        if points and points[-1][1] > message_count:  # a node has restarted, or is not there now
            points.clear()
        if not depth:
            points.clear()
            points.append((now, message_count))
            return None, False
        if not points or points[-1][0] < now:
            points.append((now, message_count))
        taken = message_count - depth  # so many have been taken out
        while len(points) > 1 and points[1][1] <= taken:
            points.popleft()
        if len(points) > _MOST:
            self._points[topic, channel] = points = _thinned(points)
        # It came after the last point at which the count was not above what is taken.
        return now - points[0][0], points[0][1] > taken

    def forget_but(self, topics: Container[str]) -> None:
        for key in [key for key in self._points if key[0] not in topics]:
            del self._points[key]


def _thinned(points: _Points) -> _Points:
    kept = list(points)
    return deque([*kept[:-1:2], kept[-1]])
