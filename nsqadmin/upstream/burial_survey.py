"""Asks nodes now and then why they bury messages, so that a finding can name the most frequent reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import trio

from nsqadmin.cluster.model import BuriedReason
from nsqadmin.diagnosis.names import pattern_of
from nsqadmin.messages.lists import text_in, whole_in
from nsqadmin.messages.masking import MASK
from nsqadmin.messages.policy_words import is_of_nsqd
from nsqadmin.upstream.client import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsqadmin.cluster.model import Channel, ChannelNode, Snapshot, Topic
    from nsqadmin.upstream.client import Upstream

_EVERY: Final = 15.0  # seconds
_MOST: Final = 100  # channels on nodes, those that bury most
_REASONS: Final = 5  # of one node, after numbers and ids in them have become `*`
_LISTED: Final = 1_000  # in a node's answer; nsqd sends no more
_LONGEST: Final = 200  # characters
_AT_ONCE: Final = 16
_PATIENCE: Final = 5.0  # seconds

_Place = tuple[str, str, str]  # topic, channel and node


class BurialSurvey:
    def __init__(self, upstream: Upstream, *, shows_texts: bool) -> None:
        """`shows_texts`: all users may see messages, so findings may quote reasons, which often quote a message."""
        self._upstream = upstream
        self._shows_texts = shows_texts
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._known: dict[_Place, tuple[BuriedReason, ...]] = {}
        self._asked_at = -inf
        self._asking: set[_Place] = set()

    def start(self, nursery: trio.Nursery, snapshot: Snapshot) -> None:
        """Start asking, unless that was only a few seconds ago, or there is no answer yet. Forget what is over."""
        now = trio.current_time()
        if now - self._asked_at < _EVERY:
            return
        self._asked_at = now
        places = sorted(_burying(snapshot), key=lambda it: -it[1].buried_recent)[:_MOST]
        wanted = {(channel.topic, channel.name, row.node) for channel, row in places}
        self._known = {place: it for place, it in self._known.items() if place in wanted}
        for place in wanted - self._asking:
            self._asking.add(place)
            nursery.start_soon(self._ask, place)

    async def _ask(self, place: _Place) -> None:
        topic, channel, node = place
        target = f"/channel/buried?{urlencode({'topic': topic, 'channel': channel, 'summary': 'true'})}"
        try:
            async with self._limiter:
                with trio.move_on_after(_PATIENCE):
                    self._known[place] = self._reasons_in(await self._upstream.get_json(node, target))
        except (UpstreamError, KeyError, TypeError, ValueError):
            pass  # the finding stands without a reason, or with an earlier one
        finally:
            self._asking.discard(place)

    def _reasons_in(self, document: Any) -> tuple[BuriedReason, ...]:
        counts: Counter[str] = Counter()
        for it in document["reasons"][:_LISTED]:
            counts[self._pattern(text_in(it["reason"]))] += whole_in(it["count"])
        return tuple(BuriedReason(pattern=text, count=count) for text, count in counts.most_common(_REASONS) if text)

    def _pattern(self, reason: str) -> str:
        if is_of_nsqd(reason):
            return reason
        return pattern_of(reason[:_LONGEST]) if self._shows_texts or not reason else MASK

    def shown(self, topics: Iterable[Topic]) -> tuple[Topic, ...]:
        """Return the topics, with the reasons where they are known."""
        names = {topic for topic, _, _ in self._known}
        return tuple(self._with_reasons(topic) if topic.name in names else topic for topic in topics)

    def _with_reasons(self, topic: Topic) -> Topic:
        return replace(
            topic,
            channels=tuple(
                replace(channel, nodes=tuple(self._row(channel, row) for row in channel.nodes))
                for channel in topic.channels
            ),
        )

    def _row(self, channel: Channel, row: ChannelNode) -> ChannelNode:
        reasons = self._known.get((channel.topic, channel.name, row.node))
        return replace(row, buried_reasons=reasons) if reasons and row.buried_count else row


def _burying(snapshot: Snapshot) -> Iterable[tuple[Channel, ChannelNode]]:
    reachable = {node.address for node in snapshot.nodes if node.is_reachable}
    for topic in snapshot.topics:
        for channel in topic.channels:
            if channel.buried_recent:
                yield from ((channel, row) for row in channel.nodes if row.buried_recent and row.node in reachable)
