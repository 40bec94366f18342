"""Asks nodes for their policies for a topic and a channel, only while someone looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from nsqadmin.cluster.policies import NodePolicy, read_policy
from nsqadmin.cluster.sane import NotUnderstood
from nsqadmin.upstream.client import UpstreamError, in_words
from nsqadmin.upstream.questions import ask_each

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Node
    from nsqadmin.upstream.client import Upstream

PATIENCE: Final = 2.0  # seconds that a page waits for the nodes
NO_SUCH: Final = "it does not support policy files: it is a Go nsqd or an older version"
_UNKNOWN_OPTION: Final = (400, 404)


class PolicyQuestions:
    """The queries, on trio."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def ask(self, nodes: Sequence[Node], topic: str = "", channel: str = "") -> tuple[NodePolicy, ...]:
        """Return each node's answer, in the order of the nodes. A node that is too slow has an error."""
        query = urlencode({name: value for name, value in (("topic", topic), ("channel", channel)) if value})
        target = f"/config/policy?{query}" if query else "/config/policy"
        return await ask_each(
            nodes,
            lambda node: self._ask(node, target),
            lambda node, reason: NodePolicy(node=node.address, untold=reason),
            patience=PATIENCE,
        )

    async def _ask(self, node: Node, target: str) -> NodePolicy:
        try:
            got = await self._upstream.get_json(node.address, target)
            return read_policy(node.address, got, skew=node.clock_skew or 0.0)
        except NotUnderstood as error:
            return NodePolicy(node=node.address, untold=str(error))
        except UpstreamError as error:
            reason = NO_SUCH if error.status in _UNKNOWN_OPTION else in_words(error)
            return NodePolicy(node=node.address, untold=reason)
