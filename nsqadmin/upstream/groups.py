"""Asks nodes for a channel's groups, only while someone looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from nsqadmin.cluster.message_groups import MOST_ROWS, NodeGroups, read_groups
from nsqadmin.cluster.sane import NotUnderstood
from nsqadmin.messages.reading import code_of
from nsqadmin.upstream.client import UpstreamError, in_words
from nsqadmin.upstream.questions import ask_each

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Channel, Node, Snapshot
    from nsqadmin.upstream.client import Upstream

PATIENCE: Final = 5.0  # seconds that a page waits; a node takes two for the times of old messages
NO_SUCH: Final = "it does not support groups: it is a Go nsqd or an older version"
_NO_MESSAGES: Final = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")


class GroupQuestions:
    """The queries, on trio."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def of_channel(self, snapshot: Snapshot, channel: Channel, name: str = "") -> tuple[NodeGroups, ...]:
        """Return the largest groups of each of the channel's nodes with `name` in their names."""
        nodes = [node for row in channel.nodes if (node := snapshot.node(row.node)) is not None]
        return await self.ask(nodes, channel.topic, channel.name, name)

    async def ask(
        self, nodes: Sequence[Node], topic: str, channel: str, name: str = "", *, rows: int = MOST_ROWS
    ) -> tuple[NodeGroups, ...]:
        """Return each node's largest groups with `name` in their names, up to `rows`, in the order of the nodes."""
        arguments = {"topic": topic, "channel": channel, "limit": str(rows)} | ({"name": name} if name else {})
        target = f"/channel/groups?{urlencode(arguments)}"
        return await ask_each(
            nodes,
            lambda node: self._ask(node, target),
            lambda node, reason: NodeGroups(node=node.address, untold=reason),
            patience=PATIENCE,
        )

    async def _ask(self, node: Node, target: str) -> NodeGroups:
        try:
            got = await self._upstream.get_json(node.address, target)
            return read_groups(node.address, got, skew=node.clock_skew or 0.0)
        except NotUnderstood as error:
            return NodeGroups(node=node.address, untold=str(error))
        except UpstreamError as error:
            code = code_of(error)
            if code == "NO_GROUPS":
                return NodeGroups(node=node.address, has_rules=False)
            if code in _NO_MESSAGES:
                return NodeGroups(node=node.address)
            reason = NO_SUCH if code == "NOT_FOUND" else in_words(error)
            return NodeGroups(node=node.address, untold=reason)
