"""Asks nodes now and then for the largest groups of channels that hold many messages, so that a finding can name them."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final

import trio

from nsqadmin.cluster.message_groups import MANY
from nsqadmin.messages.masking import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqadmin.cluster.message_groups import NodeGroups
    from nsqadmin.cluster.model import Channel, ChannelNode, Node, Snapshot, Topic
    from nsqadmin.upstream.groups import GroupQuestions

_EVERY: Final = 15.0  # seconds
_MOST: Final = 100  # channels on nodes, those that hold most
_ROWS: Final = 3
_AT_ONCE: Final = 16

_Place = tuple[str, str, str]  # topic, channel and node


class GroupSurvey:
    def __init__(self, questions: GroupQuestions, *, shows_names: bool) -> None:
        """`shows_names`: all users may see messages, so findings may have the names of groups."""
        self._questions = questions
        self._shows_names = shows_names
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._known: dict[_Place, NodeGroups] = {}
        self._asked_at = -inf
        self._asking: set[_Place] = set()

    def start(self, nursery: trio.Nursery, snapshot: Snapshot) -> None:
        """Start asking, unless that was only a few seconds ago, or there is no answer yet. Forget what is no longer held."""
        now = trio.current_time()
        if now - self._asked_at < _EVERY:
            return
        self._asked_at = now
        places = sorted(_holding(snapshot), key=lambda it: -it[1].held_count)[:_MOST]
        wanted = {(channel.topic, channel.name, row.node) for channel, row in places}
        self._known = {place: it for place, it in self._known.items() if place in wanted}
        for place in wanted - self._asking:
            if (node := snapshot.node(place[2])) is not None and node.is_reachable:
                self._asking.add(place)
                nursery.start_soon(self._ask, place, node)

    async def _ask(self, place: _Place, node: Node) -> None:
        async with self._limiter:
            topic, channel, _ = place
            (told,) = await self._questions.ask([node], topic, channel, rows=_ROWS)
        self._asking.discard(place)
        if not told.untold:  # else the earlier answer is better than none
            self._known[place] = told

    def shown(self, topics: Iterable[Topic]) -> tuple[Topic, ...]:
        """Return the topics, with the largest groups where they are known."""
        names = {topic for topic, _, _ in self._known}
        return tuple(self._with_groups(topic) if topic.name in names else topic for topic in topics)

    def _with_groups(self, topic: Topic) -> Topic:
        channels = tuple(
            replace(channel, nodes=tuple(self._row(channel, row) for row in channel.nodes))
            for channel in topic.channels
        )
        return replace(topic, channels=channels)

    def _row(self, channel: Channel, row: ChannelNode) -> ChannelNode:
        told = self._known.get((channel.topic, channel.name, row.node))
        if told is None or not row.held_count:
            return row
        largest = told.largest
        if not self._shows_names:
            largest = tuple(replace(it, name=MASK if it.name else "") for it in largest)
        return replace(row, max_held=told.max_held, largest_groups=largest)


def _holding(snapshot: Snapshot) -> Iterable[tuple[Channel, ChannelNode]]:
    for topic in snapshot.topics:
        for channel in topic.channels:
            if channel.held_count >= MANY:
                yield from ((channel, row) for row in channel.nodes if row.held_count >= MANY)
