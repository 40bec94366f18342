"""One nsqd: its numbers, its topics and its clients, and whether you can drain it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nsqadmin.cluster.model import ChannelNode, Finding, Metric, Node, Snapshot, Topic, TopicNode, node_series
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.pages.consumers import ClientRow, client_rows
from nsqadmin.pages.drain import why_not_drained
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts import charts
from nsqadmin.parts.charts import lines_of
from nsqadmin.parts.painter import graphite_of, timeframe_of
from nsqadmin.parts.policies import PolicyTab
from nsqadmin.parts.policy import lines_of_cluster
from nsqadmin.parts.remains import remains_on
from nsqadmin.parts.silence import unless_unknown
from nsqadmin.parts.tables import MOST_ROWS
from nsqadmin.parts.timeline import timeline_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.timeline import Timeline
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    return [Route("GET", "/nodes/{node}", painter.cached(_NodePage(services, painter).show))]


class _NodePage:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._policy = PolicyTab(services)

    async def show(self, request: Request) -> Response:
        address = request.path_params["node"]
        snapshot = await self._painter.picture(request)
        node = snapshot.node(address)
        if node is None:
            failure = Failure(
                title="No such node",
                text=unless_unknown(snapshot, f"No nsqd has the address {address}."),
                advice="A node is named by its broadcast address and HTTP port. It may have left, or not have registered yet.",
                links=(("All nodes", self._painter.links.to("/nodes")),),
            )
            return error_page(self._painter, request, snapshot, failure)
        timeline = timeline_of(self._services, request, snapshot, nodes={address})
        graphite = graphite_of(self._services)
        return self._painter.page(
            request,
            "node.html",
            snapshot,
            current="Nodes",
            scope=f"node:{address}",
            node=node,
            told_of=address,
            remains=remains_on(self._services.view.snapshot, node, identity_of(request).sees),
            drain_refusal=why_not_drained(self._services, request, node),
            page=node_details(snapshot, node),
            charts=self._charts(timeline, node),
            timeline=timeline,
            policy=await self._policy.of_node(request, node),
            effects=lines_of_cluster(snapshot, address),
            graphite=graphite.of_node(address, timeframe_of(request)) if graphite else (),
        )

    def _charts(self, timeline: Timeline, node: Node) -> list[charts.Chart]:
        series = timeline.series(self._services, node_series(node.address))
        line = lines_of(f"nodes/{node.address}")
        drawn = partial(charts.chart, window=timeline.window, is_partial=not node.is_reachable)
        return [
            drawn("Published", series, [line(Metric.INCOMING, "in", "c1", filled=True)], form="rate"),
            drawn("Depth", series, [line(Metric.DEPTH, "depth", "c1", filled=True)]),
            drawn("In flight", series, [line(Metric.IN_FLIGHT, "in flight", "c3")]),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOnNode:
    topic: Topic
    on: TopicNode
    channels: tuple[tuple[str, ChannelNode], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetails:
    findings: tuple[Finding, ...]
    topics: tuple[TopicOnNode, ...]
    left_out: int
    clients: tuple[ClientRow, ...]


def node_details(snapshot: Snapshot, node: Node) -> NodeDetails:
    topics = [
        TopicOnNode(
            topic=topic,
            on=on,
            channels=tuple(
                (channel.name, row) for channel in topic.channels for row in channel.nodes if row.node == node.address
            ),
        )
        for topic in snapshot.topics
        for on in topic.nodes
        if on.node == node.address
    ]
    clients = tuple(
        row
        for topic in snapshot.topics
        for channel in topic.channels
        for row in client_rows(channel, snapshot.taken_at) or ()
        if row.client.node == node.address
    )
    return NodeDetails(
        findings=snapshot.findings_about(node=node.address),
        topics=tuple(topics[:MOST_ROWS]),
        left_out=max(0, len(topics) - MOST_ROWS),
        clients=tuple(sorted(clients, key=lambda row: row.rank)[:MOST_ROWS]),
    )
