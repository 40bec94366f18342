"""The nodes in the history file, so that a restarted nsqadmin knows a dead node's last numbers.

We keep the last answers of all nodes, because any of them may die before the next start. Clients and producers are left
out: their connections end with the node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from nsqadmin.cluster.flow import first_flow
from nsqadmin.cluster.model import UNKNOWN_RATES, ChannelNode, Health, RemoteCopy, TopicNode
from nsqadmin.cluster.node_stats import ChannelPart, NodeAnswer, TopicPart
from nsqadmin.cluster.recording import from_json, to_json
from nsqadmin.upstream.asked import AskedNode
from nsqadmin.upstream.discovery import Announced

if TYPE_CHECKING:
    from nsqadmin.upstream.census import Census

_FORMAT: Final = 1
_DESCRIPTION: Final = ("hostname", "broadcast_address", "tcp_port", "http_port", "version", "region", "zone")


class KeptNodes:
    """A part of the history file."""

    def __init__(self, census: Census, wall: Callable[[], float]) -> None:
        self._census = census
        self._wall = wall

    def dump(self) -> Any:
        # The values packed in another thread are answers, which never change.
        known = [(node, node.answer) for node in self._census.nodes.values()]
        return {
            "format": _FORMAT,
            "nodes": [_dumped(node, answer) for node, answer in known if answer is not None and node.answered_at],
            "configured": {at: _described(node) for at, node in self._census.configured.items()},
        }

    def load(self, dumped: Any) -> None:
        """Restore the nodes as silent ones: each is polled at the next sweep. Raise ValueError for another format."""
        try:
            if dumped["format"] != _FORMAT:
                raise ValueError("another format")
            nodes = [self._restored(raw) for raw in dumped["nodes"]]
            configured = {str(at): Announced(**raw) for at, raw in dumped["configured"].items()}
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not nodes: {error!r}") from error
        self._census.restore(nodes, configured)

    def _restored(self, raw: Mapping[str, Any]) -> AskedNode:
        announced = Announced(**raw["announced"])
        answered_at, now = float(raw["answered_at"]), trio.current_time()
        node = AskedNode(
            health=Health.DOWN,
            since=float(raw["since"]),
            answered_in=float(raw["answered_in"]),
            answered_at=answered_at,
            announced=announced,
            has_history=raw["has_history"],
            left_at=now,
        )
        at = now - max(0.0, self._wall() - answered_at)  # so that rates are right if the node has kept running
        topics = {str(name): _topic(announced.address, part, at) for name, part in raw["topics"].items()}
        node.answer = NodeAnswer(
            at=at,
            topics=topics,
            producers=None,
            has_clients=False,
            version=announced.version,
            release=str(raw.get("release") or ""),
            policy_digest=raw.get("policy_digest"),  # or the others' files would be compared without this one
            start_time=raw["start_time"],
            remote=from_json(RemoteCopy, raw["remote"]) if raw.get("remote") is not None else None,
        )
        return node


def _dumped(node: AskedNode, answer: NodeAnswer) -> dict[str, Any]:
    return {
        "announced": _described(node.announced),
        "since": node.answered_at if node.has_answered else node.since,
        "answered_in": node.answered_in,
        "answered_at": node.answered_at,
        "has_history": node.has_history,
        "start_time": answer.start_time,
        "release": answer.release,
        "policy_digest": answer.policy_digest,
        "remote": to_json(answer.remote) if answer.remote is not None else None,
        "topics": partial(_dumped_topics, answer.topics),
    }


def _described(announced: Announced) -> dict[str, Any]:
    return {name: getattr(announced, name) for name in _DESCRIPTION}


def _dumped_topics(topics: Mapping[str, TopicPart]) -> dict[str, Any]:
    return {
        name: (_sparse(topic.row), {channel: _sparse(part.row) for channel, part in topic.channels.items()})
        for name, topic in topics.items()
    }


def _sparse(row: TopicNode | ChannelNode) -> dict[str, Any]:
    """Return the fields that differ from their defaults, without the name of the node and its clients."""
    return {
        field.name: to_json(value)
        for field in dataclasses.fields(row)
        if field.name not in ("node", "clients") and (value := getattr(row, field.name)) != field.default
    }


def _topic(node: str, dumped: Sequence[Any], at: float) -> TopicPart:
    row, channels = dumped
    return TopicPart(
        row=from_json(TopicNode, {**row, "node": node}),
        rates=UNKNOWN_RATES,
        channels={str(name): _channel(node, channel, at) for name, channel in channels.items()},
        digest=b"",
    )


def _channel(node: str, dumped: Mapping[str, Any], at: float) -> ChannelPart:
    row = from_json(ChannelNode, {**dumped, "node": node, "clients": None})
    return ChannelPart(row, UNKNOWN_RATES, first_flow(at, row), {})
