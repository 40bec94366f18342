"""Decides for which topics we request clients.

In a cluster with few clients these are all topics; with many, topics that someone looks at and topics with a backlog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel, Snapshot, Topic

_LOOKED_FOR: Final = 60.0  # seconds for which a topic counts as looked at
_MOST_LOOKED: Final = 20  # topics whose clients are requested one by one
_STANDSTILL: Final = 30.0  # seconds


class Interest:
    def __init__(self) -> None:
        self._looked_at: dict[str, float] = {}  # topics; "": all consumers

    def look_at(self, topic: str, now: float) -> None:
        self._looked_at[topic] = now

    def is_in_all(self, snapshot: Snapshot, *, few: int, now: float) -> bool:
        """Return True to request all clients: someone looks at all, or the cluster has at most `few`."""
        if not snapshot.index:
            return False  # the number of clients is still unknown
        return now - self._looked_at.get("", -1e9) < _LOOKED_FOR or snapshot.totals.client_count <= few

    def looked_at(self, now: float) -> tuple[str, ...]:
        """Return the topics that someone looks at."""
        since = now - _LOOKED_FOR
        self._looked_at = {topic: at for topic, at in self._looked_at.items() if at >= since}
        return tuple(topic for topic in self._looked_at if topic)[:_MOST_LOOKED]

    def topics(self, snapshot: Snapshot, now: float) -> tuple[str, ...]:
        """Return the topics that someone looks at, and those with a backlog despite consumers: clients show why.

        First come those whose consumers finish nothing: their touches tell if they are stuck, or have long work.
        """
        looked = self.looked_at(now)
        waiting = [
            (any(_stands_still(channel, snapshot) for channel in topic.channels), _deepest(topic), topic.name)
            for topic in snapshot.topics
            if any(
                channel.client_count and (channel.depth or _stands_still(channel, snapshot))
                for channel in topic.channels
            )
        ]
        worst = [name for *_, name in sorted(waiting, reverse=True)]
        return tuple(dict.fromkeys([*looked, *worst]))[:_MOST_LOOKED]


def _stands_still(channel: Channel, snapshot: Snapshot) -> bool:
    return channel.stall is not None and snapshot.taken_at - channel.stall.since >= _STANDSTILL


def _deepest(topic: Topic) -> int:
    return max((channel.depth for channel in topic.channels), default=0)
