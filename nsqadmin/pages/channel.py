"""One channel: its numbers, consumers, nodes, messages (next, in flight, deferred, buried), groups and policy, one tab each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.cluster.model import Channel, Finding, Metric, Snapshot, Topic, channel_series
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.pages.action import curls_of_channel
from nsqadmin.pages.consumers import ClientGroup, ClientRow, client_groups, client_rows
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.pages.topic import no_topic
from nsqadmin.parts import charts
from nsqadmin.parts.channel_buried import buried_of
from nsqadmin.parts.channel_deferred import deferred_of
from nsqadmin.parts.channel_groups import groups_of
from nsqadmin.parts.channel_in_flight import in_flight_of
from nsqadmin.parts.charts import lines_of
from nsqadmin.parts.messages import MessagesTab, no_history
from nsqadmin.parts.opened import Opened, beside
from nsqadmin.parts.painter import graphite_of, timeframe_of, word_of
from nsqadmin.parts.policies import PolicyTab
from nsqadmin.parts.policy import limit_in_words, lines_of_channel, lines_of_cluster
from nsqadmin.parts.selection_tab import ADDRESS
from nsqadmin.parts.silence import unknown_part, unless_unknown
from nsqadmin.parts.status import Standing
from nsqadmin.parts.timeline import timeline_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.policy import CauseLine
    from nsqadmin.parts.timeline import Timeline
    from nsqadmin.services import Services

_TABS: Final = ("overview", "consumers", "nodes", "messages", "inflight", "deferred", "buried", "groups", "policy")
_OPENING: Final = ("messages", "inflight", "deferred", "buried")  # tabs beside whose table a message can be open


def routes(services: Services, painter: Painter) -> list[Route]:
    return [Route("GET", "/topics/{topic}/{channel}", painter.cached(_ChannelPage(services, painter).show))]


class _ChannelPage:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._messages = MessagesTab(services, painter)
        self._policy = PolicyTab(services)

    async def show(self, request: Request) -> Response:
        name, channel_name = request.path_params["topic"], request.path_params["channel"]
        self._services.view.look_at(name)
        snapshot = await self._painter.picture(request, name)
        topic = snapshot.topic(name)
        if topic is None:
            return no_topic(self._painter, request, snapshot, name)
        channel = topic.channel(channel_name)
        if channel is None:
            return self._no_channel(request, snapshot, name, channel_name)
        tab = word_of(request, "tab", _TABS)
        links = self._painter.links
        timeline = timeline_of(
            self._services,
            request,
            snapshot,
            topic=name,
            channel=channel_name,
            nodes={row.node for row in channel.nodes},
        )
        graphite = graphite_of(self._services) if tab == "overview" else None
        client = request.query_params.get("client", "").strip() if tab == "consumers" else ""
        return self._painter.page(
            request,
            "channel.html",
            snapshot,
            current="Topics",
            scope=f"channel:{name}/{channel_name}",
            topic=topic,
            channel=channel,
            tab=tab,
            group=request.query_params.get("group", ""),
            client=client,
            page=channel_details(topic, channel, Standing(snapshot.findings), snapshot, client=client),
            charts=self._charts(timeline, channel) if tab == "overview" else (),
            timeline=timeline,
            graphite=graphite.of_channel(name, channel_name, timeframe_of(request)) if graphite else (),
            opened=await self._opened(request, snapshot, channel, tab),
            m=await self._messages.of_channel(request, topic, channel) if tab == "messages" else None,
            policy=await self._policy.of_channel(request, snapshot, channel) if tab == "policy" else None,
            effects=lines_of_cluster(snapshot) if tab == "policy" else (),
            in_flight=await in_flight_of(self._services, links, request, channel) if tab == "inflight" else None,
            buried=await buried_of(self._services, links, request, channel) if tab == "buried" else None,
            deferred=await deferred_of(self._services, links, request, channel) if tab == "deferred" else None,
            groups=await groups_of(self._services, request, snapshot, channel) if tab == "groups" else None,
        )

    async def _opened(self, request: Request, snapshot: Snapshot, channel: Channel, tab: str) -> Opened | None:
        if tab not in _OPENING:
            return None
        kind = tab if tab in ADDRESS else ""
        identity, links = identity_of(request), self._painter.links
        return await beside(self._services, links, request, snapshot, identity, channel.topic, channel, kind=kind)

    def _no_channel(self, request: Request, snapshot: Snapshot, topic: str, channel: str) -> Response:
        links = self._painter.links
        failure = Failure(
            title="No such channel",
            text=unless_unknown(snapshot, f"The topic “{topic}” has no channel “{channel}”.", snapshot.topic(topic)),
            advice="It may have been deleted, or no consumer has subscribed to it yet. An ephemeral channel is deleted with its last consumer.",
            links=(
                (f"Topic {topic}", links.topic(topic)),
                ("Create it…", links.action("create_channel", topic=topic, channel=channel)),
            ),
        )
        return error_page(self._painter, request, snapshot, failure)

    def _charts(self, timeline: Timeline, channel: Channel) -> list[charts.Chart]:
        series = timeline.series(self._services, channel_series(channel.topic, channel.name))
        line = lines_of(f"topics/{channel.topic}/{channel.name}")
        drawn = partial(charts.chart, window=timeline.window, is_partial=bool(channel.silent))
        return [
            drawn(
                "Depth",
                series,
                [
                    line(Metric.DEPTH, "all", "c1", filled=True),
                    line(Metric.BACKEND_DEPTH, "on disk", "c3", filled=True),
                ],
            ),
            drawn(
                "In and out",
                series,
                [line(Metric.INCOMING, "in", "c1"), line(Metric.FINISHED, "out", "c2")],
                form="rate",
            ),
            drawn(
                "Requeued or timed out",
                series,
                [line(Metric.REQUEUED, "requeued", "c5"), line(Metric.TIMED_OUT, "timed out", "c4")],
                form="rate",
            ),
            drawn(
                "In flight",
                series,
                [line(Metric.IN_FLIGHT, "in flight", "c3"), line(Metric.DEFERRED, "deferred", "c5")],
            ),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDetails:
    findings: tuple[Finding, ...]
    calm: str  # text if there are no findings
    calm_kind: str
    clients: tuple[ClientRow, ...] | None
    hosts: tuple[ClientGroup, ...]
    no_history: str
    curls: tuple[tuple[str, str], ...]
    delivery: str  # share of messages to the same zone and region; empty if clients announce neither
    policy: tuple[CauseLine, ...]
    limit: str  # max_in_flight in words, and for how long it has been reached; empty: no limit


def channel_details(
    topic: Topic, channel: Channel, standing: Standing, snapshot: Snapshot, *, client: str = ""
) -> ChannelDetails:
    """Return the details. `client` selects consumers by name, as in the list of messages in flight; "": all."""
    now = snapshot.taken_at
    clients = client_rows(channel, now)
    if client and clients is not None:
        clients = tuple(it for it in clients if it.is_named(client))
    return ChannelDetails(
        findings=(*standing.about(topic.name, channel.name), *standing.about(topic.name)),
        calm=unless_unknown(snapshot, _calm(channel), channel),
        calm_kind="warning" if unknown_part(snapshot, channel) else "ok",
        clients=clients,
        hosts=client_groups(clients or (), "host"),
        no_history=no_history(topic),
        curls=curls_of_channel(channel),
        delivery=_delivery(channel),
        policy=lines_of_channel(channel),
        limit=limit_in_words(channel, now),
    )


def _calm(channel: Channel) -> str:
    if not channel.client_count and not channel.depth:
        return "No messages wait here, and no consumer is connected."
    if not channel.depth:
        return "This channel keeps up: no messages wait."
    if channel.drain_time is not None:
        return f"This channel keeps up: its backlog is gone in {numbers.duration(channel.drain_time)}."
    return "The numbers show no problem."


def _delivery(channel: Channel) -> str:
    near = sum(row.zone_local_count for row in channel.nodes)
    region = sum(row.region_local_count for row in channel.nodes)
    far = sum(row.global_count for row in channel.nodes)
    total = near + region + far
    if not near + region:
        return ""  # no client announces its zone or region
    return f"Delivered in the same zone {numbers.percent(near / total)}, same region {numbers.percent(region / total)}, elsewhere {numbers.percent(far / total)}"
