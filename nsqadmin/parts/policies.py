"""Requests the nodes' policy files, for the pages that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqadmin.http.responses import identity_of
from nsqadmin.parts.policy import PolicyPage, policy_page
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.cluster.model import Channel, Node, Snapshot, Topic
    from nsqadmin.services import Services


class PolicyTab:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def of_topic(self, request: Request, snapshot: Snapshot, topic: Topic) -> PolicyPage | None:
        return await self._asked(request, _nodes(snapshot, [row.node for row in topic.nodes]), topic.name, "")

    async def of_channel(self, request: Request, snapshot: Snapshot, channel: Channel) -> PolicyPage | None:
        nodes = _nodes(snapshot, [row.node for row in channel.nodes])
        return await self._asked(request, nodes, channel.topic, channel.name)

    async def of_node(self, request: Request, node: Node) -> PolicyPage | None:
        return await self._asked(request, [node], "", "")

    async def _asked(self, request: Request, nodes: Sequence[Node], topic: str, channel: str) -> PolicyPage | None:
        """Return the nodes' answers; None if nsqadmin shows a snapshot file."""
        if self._services.policies is None:
            return None
        identity = identity_of(request)
        told = await run_trio(self._services.policies.ask, nodes, topic, channel)
        told = tuple(replace(it, untold=identity.quoted(it.untold)) for it in told)
        return policy_page(told, channel=bool(channel), shows_files=identity.sees_everything)


def _nodes(snapshot: Snapshot, addresses: Sequence[str]) -> list[Node]:
    return [node for address in addresses if (node := snapshot.node(address)) is not None]
