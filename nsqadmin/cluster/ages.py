"""Estimates how long a channel's next message has waited, from counters that every nsqd has.

A channel counts the messages that come in. With a depth of d and a count of n, the next message is about the (n - d)th,
and it came when the count passed that number. As we see the count at each sample, we know between which two samples
that was. Requeued messages make the next message look older than it is, the more of them there are: a small price for
knowing the lag as time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Final

_MOST: Final = 600  # points of one channel; with more, every second one is dropped

_Points = deque[tuple[float, int]]


class Ages:
    def __init__(self) -> None:
        self._points: dict[tuple[str, str], _Points] = {}
        self._now = self._before = 0.0

    def begin(self, now: float) -> None:
        """Start another sample. Channels that it does not mention count as unchanged."""
        self._before, self._now = self._now, now

    def age(self, topic: str, channel: str, *, depth: int, message_count: int) -> tuple[float | None, bool]:
        """Return the age of the next message, None if nothing waits, and whether the age is only a lower bound."""
        now = self._now
        points = self._points.setdefault((topic, channel), deque())
        if points and points[-1][0] < self._before:
            points.append((self._before, points[-1][1]))
        if points and points[-1][1] > message_count:  # a node has restarted, or is missing now
            points.clear()
        if not depth:
            points.clear()
            points.append((now, message_count))
            return None, False
        if not points or points[-1][0] < now:
            points.append((now, message_count))
        taken = message_count - depth  # how many messages have been taken out
        while len(points) > 1 and points[1][1] <= taken:
            points.popleft()
        if len(points) > _MOST:
            self._points[topic, channel] = points = _thinned(points)
        # The next message came after the last point whose count was not above `taken`.
        return now - points[0][0], points[0][1] > taken

    def keep_only(self, topics: Container[str]) -> None:
        """Forget all topics but these."""
        for key in [key for key in self._points if key[0] not in topics]:
            del self._points[key]


def _thinned(points: _Points) -> _Points:
    kept = list(points)
    return deque([*kept[:-1:2], kept[-1]])
