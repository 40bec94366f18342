"""Finds the readers of topics that someone looks at: each sweep queries every node with such a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus

import trio

from nsqadmin.cluster.readers import NodeReaders, joined, read_readers
from nsqadmin.cluster.sane import NotUnderstood
from nsqadmin.upstream.asked import Round
from nsqadmin.upstream.client import UpstreamError, in_words

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Topic
    from nsqadmin.upstream.asked import AskedNode
    from nsqadmin.upstream.client import Upstream

NO_LOG: Final = "it keeps no readable log: it is a Go nsqd or an older version"
_AT_ONCE: Final = 16
_NOT_FOUND: Final = 404

_Place = tuple[str, str]  # topic and node


@dataclass(slots=True)
class _OnNode:
    """The readers of one topic on one node."""

    known: NodeReaders
    is_busy: bool = False


class ReaderSurvey:
    def __init__(self, upstream: Upstream, wall: Callable[[], float]) -> None:
        self._upstream = upstream
        self._wall = wall
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._places: dict[_Place, _OnNode] = {}

    def start(self, nursery: trio.Nursery, nodes: Mapping[str, AskedNode], topics: Sequence[str]) -> Round:
        """Start querying all nodes with one of these topics. Other topics are forgotten."""
        self._places = {
            (topic, node): state for (topic, node), state in self._places.items() if topic in topics and node in nodes
        }
        asked = Round()
        for address, node in nodes.items():
            for topic in topics:
                if node.answer is not None and topic in node.answer.topics:
                    state = self._places.setdefault((topic, address), _OnNode(NodeReaders()))
                    if not state.is_busy and node.not_before <= trio.current_time():
                        asked.start(nursery, self._ask_in_turn, node, topic, state)
        return asked

    async def _ask_in_turn(self, node: AskedNode, topic: str, state: _OnNode) -> None:
        state.is_busy = True
        try:
            # Silent nodes must not take the slots of nodes that answer.
            async with self._limiter if node.has_answered else trio.CapacityLimiter(1):
                state.known = await self._ask(node, topic, state.known)
        finally:
            state.is_busy = False

    async def _ask(self, node: AskedNode, topic: str, before: NodeReaders) -> NodeReaders:
        address = node.announced.address
        if node.has_history is False:
            return NodeReaders(reason=NO_LOG)
        try:
            got = await self._upstream.get_json(address, f"/topic/log?topic={quote_plus(topic)}&readers=true")
            return NodeReaders(read_readers(address, got, as_of=self._wall(), skew=node.clock_skew))
        except NotUnderstood as error:
            return NodeReaders(reason=str(error))
        except UpstreamError as error:
            if error.status == _NOT_FOUND:  # the topic has just been deleted there
                return NodeReaders(reports=())
            return replace(before, reason=in_words(error))

    def shown(self, topics: Sequence[Topic]) -> tuple[Topic, ...]:
        """Return the topics, with their readers if known."""
        by_topic: dict[str, dict[str, NodeReaders]] = {}
        for (topic, node), state in self._places.items():
            by_topic.setdefault(topic, {})[node] = state.known
        return tuple(
            self._with_readers(topic, by_topic[topic.name]) if topic.name in by_topic else topic for topic in topics
        )

    @staticmethod
    def _with_readers(topic: Topic, known: Mapping[str, NodeReaders]) -> Topic:
        if all(on_node.reports is None and not on_node.reason for on_node in known.values()):
            return topic  # no node has answered yet
        not_yet = NodeReaders(reason="it has not answered yet")
        readers, untold = joined(
            {
                node: on_node if on_node.reports is not None or on_node.reason else not_yet
                for node, on_node in known.items()
            }
        )
        return replace(topic, readers=readers, readers_untold=untold)
