"""Asks nodes about channels now and then, where most of something is, and keeps the answers while they are of use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqadmin.cluster.model import Channel, ChannelNode, Node, Snapshot, Topic

_EVERY: Final = 15.0  # seconds
_MOST: Final = 100  # channels on nodes
_AT_ONCE: Final = 16

T = TypeVar("T")
_Place = tuple[str, str, str]  # topic, channel and node


class ChannelSurvey(Generic[T]):
    """The answers to one question, and when to ask it. A node isn't asked again about a channel before it has answered."""

    def __init__(
        self,
        count: Callable[[Channel | ChannelNode], int],
        ask: Callable[[Node, str, str], Awaitable[T | None]],
        add: Callable[[ChannelNode, T], ChannelNode],
    ) -> None:
        """`count` is of what the question is about; only nodes and channels that have any are asked.

        `ask` asks a node about a topic's channel; None: it didn't answer, so the earlier answer stays. `add` puts an
        answer into the channel's row of that node.
        """
        self._count = count
        self._ask = ask
        self._add = add
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._known: dict[_Place, T] = {}
        self._asked_at = -inf
        self._asking: set[_Place] = set()

    def start(self, nursery: trio.Nursery, snapshot: Snapshot) -> None:
        """Start asking, unless that was only a few seconds ago. Forget the answers about places that have nothing left."""
        now = trio.current_time()
        if now - self._asked_at < _EVERY:
            return
        self._asked_at = now
        found = sorted(self._found(snapshot), key=lambda it: -it[1])[:_MOST]
        wanted = {place for place, _ in found}
        self._known = {place: it for place, it in self._known.items() if place in wanted}
        for place in wanted - self._asking:
            if (node := snapshot.node(place[2])) is not None and node.is_reachable:
                self._asking.add(place)
                nursery.start_soon(self._ask_about, place, node)

    def _found(self, snapshot: Snapshot) -> Iterable[tuple[_Place, int]]:
        for topic in snapshot.topics:
            for channel in topic.channels:
                if self._count(channel):
                    for row in channel.nodes:
                        if count := self._count(row):
                            yield (channel.topic, channel.name, row.node), count

    async def _ask_about(self, place: _Place, node: Node) -> None:
        topic, channel, _ = place
        try:
            async with self._limiter:
                told = await self._ask(node, topic, channel)
            if told is not None:
                self._known[place] = told
        finally:
            self._asking.discard(place)

    def shown(self, topics: Iterable[Topic]) -> tuple[Topic, ...]:
        """Return the topics, with the answers where they are known."""
        names = {topic for topic, _, _ in self._known}
        return tuple(self._with_answers(topic) if topic.name in names else topic for topic in topics)

    def _with_answers(self, topic: Topic) -> Topic:
        channels = tuple(
            replace(channel, nodes=tuple(self._row(channel, row) for row in channel.nodes))
            for channel in topic.channels
        )
        return replace(topic, channels=channels)

    def _row(self, channel: Channel, row: ChannelNode) -> ChannelNode:
        told = self._known.get((channel.topic, channel.name, row.node))
        return row if told is None else self._add(row, told)
