"""The age of a channel's oldest waiting message, over all of its nodes.

Our nsqd reports when that message was published. For other nsqds we estimate it, node by node, from counters that every
node has: a channel counts incoming messages. With a depth of d and a count of n, the next message is about the (n -
d)th, and it came when the count passed that number. We see the count at each sample, so we know between which two
samples that was. Requeued messages make the next message look older than it is, the more of them there are: a small
price for a lag in seconds.

The messages of a silent node are as old as when it last answered, because we can't know their state since.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode

_MOST: Final = 64  # points of one channel on one node; when there are more, we drop every second one

_Key = tuple[str, str, str]  # topic, channel and node
_Points = list[tuple[float, int]]  # most channels have one point, and an empty deque takes 600 bytes


class Age(NamedTuple):
    """In seconds; `is_older`: it is only a lower bound."""

    seconds: float | None  # None: nothing waits, or the age is unknown
    is_older: bool = False


NOTHING_WAITS: Final = Age(None)


class Ages:
    def __init__(self) -> None:
        self._points: dict[_Key, _Points] = {}
        self._told: dict[_Key, float] = {}  # publish time of the oldest message, as last reported by its node
        self._last: dict[_Key, Age] = {}  # of the nodes that answered
        self._silent: set[_Key] = set()
        self._now = self._before = self._wall = 0.0

    def begin(self, now: float, wall: float) -> None:
        """Start another sample, at the time `wall`. Channels that aren't mentioned count as unchanged."""
        self._before, self._now, self._wall = self._now, now, wall

    def of_channel(self, topic: str, channel: str, rows: Iterable[ChannelNode], silent: Container[str]) -> Age:
        """Return the greatest age on the channel's nodes. It is a lower bound if any node's age is one."""
        ages = [self._on_node((topic, channel, row.node), row, is_silent=row.node in silent) for row in rows]
        known = [age.seconds for age in ages if age.seconds is not None]
        return Age(max(known), any(age.is_older for age in ages)) if known else NOTHING_WAITS

    def _on_node(self, key: _Key, row: ChannelNode, *, is_silent: bool) -> Age:
        if is_silent:
            self._silent.add(key)
            return self._last.get(key) or Age(None, is_older=bool(row.depth))
        # While a node has to read that message from disk it reports nothing: the last reported time is close enough.
        told = row.oldest_at if row.oldest_at is not None else self._told.get(key)
        if told is not None and row.depth:
            self._told[key] = told
            age = Age(max(0.0, self._wall - told))
        else:
            age = self._estimated(key, depth=row.depth, message_count=row.message_count)
        self._last[key] = age
        self._silent.discard(key)
        return age

    def _estimated(self, key: _Key, *, depth: int, message_count: int) -> Age:
        now = self._now
        points = self._points.setdefault(key, [])
        # While the node was silent, we didn't see its count.
        if points and points[-1][0] < self._before and key not in self._silent:
            points.append((self._before, points[-1][1]))
        if points and points[-1][1] > message_count:  # the node has restarted
            points.clear()
        if not depth:
            points.clear()
            points.append((now, message_count))
            return NOTHING_WAITS
        if not points or points[-1][0] < now:
            _add(points, (now, message_count))
        taken = message_count - depth  # messages that have left the queue
        while len(points) > 1 and points[1][1] <= taken:
            del points[0]
        # The next message came after the last point with a count up to `taken`.
        return Age(now - points[0][0], is_older=points[0][1] > taken)

    def keep_only(self, topics: Container[str]) -> None:
        """Forget all other topics."""
        for key in [key for key in self._last if key[0] not in topics]:
            del self._last[key]
            self._points.pop(key, None)
            self._told.pop(key, None)
        self._silent = {key for key in self._silent if key[0] in topics}


def _add(points: _Points, point: tuple[float, int]) -> None:
    """Add a point, or replace the last one if that adds nothing or is too close to the one before it.

    So the points spread evenly over the time that the next message has waited, and give it to a thirtieth.
    """
    if len(points) > 1:
        (before, count), apart = points[-2], 2 * (point[0] - points[0][0]) / _MOST
        if count == points[-1][1] == point[1] or point[0] - before < apart:
            points.pop()
    points.append(point)
    if len(points) > _MOST:
        del points[1:-1:2]
