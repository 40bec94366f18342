"""Detects that a channel has consumers of another program or version: a deployment, which often explains later events.

Consumers identify themselves by their user agent, such as `shop-worker/1.5`. A deployment ends some and starts others,
and for a moment there may be none. So a version is new if the channel had consumers before, but none of this version in
the last minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nsqadmin.cluster.model import TAIL_PREFIX, Activity, Channel, Snapshot

REMEMBERED: Final = 600.0  # seconds after which a version that left is new again
_MOST: Final = 20  # versions to remember for one channel
_MOST_NAMED: Final = 3
_LONGEST: Final = 100  # characters of a user agent, which clients choose


class Versions:
    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[str, float]] = {}  # by channel: versions, and when each was last there

    def events(self, now: Snapshot) -> Iterator[Activity]:
        """Yield an event for each channel with a new version of its consumers, and remember the versions."""
        known, self._seen = self._seen, {}
        for topic in now.topics:
            for channel in topic.channels:
                key = topic.name, channel.name
                seen = known.get(key, {})
                there = _versions(channel)
                if there and seen:
                    new = [it for it in there if it not in seen]
                    if new:
                        yield _event(channel, new, [it for it in seen if it not in there], now.taken_at)
                if there:
                    seen = {**seen, **dict.fromkeys(there, now.taken_at)}
                if seen:
                    self._seen[key] = _remembered(seen, now.taken_at)


def _versions(channel: Channel) -> list[str]:
    if not channel.client_count or channel.name.startswith(TAIL_PREFIX):
        return []
    agents = {client.user_agent for row in channel.nodes for client in row.clients or ()}
    return sorted(agent[:_LONGEST] for agent in agents if agent)


def _remembered(seen: dict[str, float], now: float) -> dict[str, float]:
    """Return the versions of the last minutes, and always the last ones: a channel may be without consumers."""
    newest = max(seen.values())
    if len(seen) <= _MOST and min(seen.values()) >= now - REMEMBERED:
        return seen
    kept = [(agent, at) for agent, at in seen.items() if at >= now - REMEMBERED or at == newest]
    return dict(sorted(kept, key=lambda it: -it[1])[:_MOST])


def _event(channel: Channel, new: list[str], old: list[str], at: float) -> Activity:
    words = f"channel {channel.topic}/{channel.name} has consumers of another version: {_named(new)}"
    if old:
        words += f", before: {_named(old)}"
    return Activity(at=at, what="consumer_version", text=words, topic=channel.topic, channel=channel.name)


def _named(agents: list[str]) -> str:
    more = len(agents) - _MOST_NAMED
    return ", ".join(agents[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
