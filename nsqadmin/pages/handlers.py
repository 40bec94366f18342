"""The pages and their routes: complete HTML from the newest picture, which needs no script."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqadmin.access.policy import Right
from nsqadmin.cluster.model import (
    CLUSTER_SERIES,
    Activity,
    Channel,
    Metric,
    Node,
    Series,
    Snapshot,
    Span,
    Topic,
    channel_series,
    node_series,
    topic_series,
)
from nsqadmin.cluster.pipeline_file import PipelineResults
from nsqadmin.http.app import Handler, Route
from nsqadmin.http.responses import identity_of, json_answer
from nsqadmin.pages import charts, details, filters, jump, overview, topics
from nsqadmin.pages.actions import ActionPages
from nsqadmin.pages.channel_buried import buried_of
from nsqadmin.pages.channel_deferred import deferred_of
from nsqadmin.pages.charts import Line
from nsqadmin.pages.draining import DrainingPages, why_not_drained
from nsqadmin.pages.forgetting import ForgettingPages
from nsqadmin.pages.graphite import TIMEFRAMES, Graphite
from nsqadmin.pages.happenings import folded
from nsqadmin.pages.incidents import IncidentPages
from nsqadmin.pages.messages import MessagePages
from nsqadmin.pages.page_cache import PageCache
from nsqadmin.pages.painter import Failure, Painter, span_of, word_of
from nsqadmin.pages.policies import PolicyPages
from nsqadmin.pages.readers import landing
from nsqadmin.pages.remains import remains_on
from nsqadmin.pages.replays import ReplayPages
from nsqadmin.pages.selected_message import SelectedMessagePages
from nsqadmin.pages.selection_plan import SelectionPlanPages
from nsqadmin.pages.status import Standing
from nsqadmin.pages.tables import page_number, part_of
from nsqadmin.pages.undoing import UndoPages, undoable
from nsqcommon.options import seconds
from nsqcommon.passwords import without_credentials

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.pages.graphite import Pictures
    from nsqadmin.services import Services

_TABS_OF_TOPIC: Final = ("overview", "channels", "nodes", "producers", "messages", "policy")
_TABS_OF_CHANNEL: Final = ("overview", "consumers", "nodes", "messages", "deferred", "buried", "policy")


def routes(services: Services) -> list[Route]:
    painter = Painter(services)
    messages = MessagePages(services, painter)
    pages = _Pages(services, painter, messages)
    cached = PageCache(services)
    return [
        Route("GET", "/", cached(pages.overview)),
        Route("GET", "/topics", cached(pages.topics)),
        Route("GET", "/topics/{topic}", cached(pages.topic)),
        Route("GET", "/topics/{topic}/{channel}", cached(pages.channel)),
        Route("GET", "/consumers", cached(pages.consumers)),
        Route("GET", "/nodes", cached(pages.nodes)),
        *ForgettingPages(services, painter).routes(),
        *DrainingPages(services, painter).routes(),
        Route("GET", "/nodes/{node}", cached(pages.node)),
        Route("GET", "/lookup", cached(pages.lookup)),
        Route("GET", "/activity", pages.activity),
        Route("GET", "/counter", cached(pages.counter)),
        Route("GET", "/help", cached(pages.help)),
        Route("GET", "/jump", pages.jump, logged=False),
        Route("GET", "/static/{asset}", painter.asset, logged=False, public=True),
        Route("GET", "/favicon.ico", painter.favicon, logged=False, public=True),
        Route("GET", "/fonts/{asset}", painter.asset, logged=False, public=True),
        *messages.routes(),
        *SelectedMessagePages(services, painter).routes(),
        *SelectionPlanPages(services, painter).routes(),
        *IncidentPages(services, painter).routes(cached),
        *ReplayPages(services, painter).routes(),
        *UndoPages(services, painter).routes(),
        *ActionPages(services, painter).routes(),
    ]


def missing(services: Services) -> Handler:
    """Return the handler for paths that do not exist."""
    painter = Painter(services)

    async def page(request: Request) -> Response:
        failure = Failure(
            title="No such page",
            text="There is nothing at this address.",
            advice="The link may be old, or the address mistyped. Ctrl K finds topics, channels, nodes and consumers.",
            links=(("Overview", painter.links.to("/")), ("All topics", painter.links.to("/topics"))),
        )
        return painter.failure(request, await painter.picture(request), failure)

    return page


class _Pages:
    def __init__(self, services: Services, painter: Painter, messages: MessagePages) -> None:
        self._services = services
        self._painter = painter
        self._messages = messages
        self._policy = PolicyPages(services)
        results = services.options.pipeline_results
        self._results = PipelineResults(results) if results else None
        self._links = painter.links

    async def overview(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        incidents = self._services.incidents.seen_by(identity_of(request))
        page = overview.overview(snapshot, incidents, self._series_of_channel, self._links)
        shown = self._cluster_charts(request, snapshot)
        return self._painter.page(
            request,
            "overview.html",
            snapshot,
            current="Overview",
            scope="overview",
            page=page,
            charts=shown,
        )

    async def topics(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        wanted, wrong = request.query_params.get("filter", "").strip(), ""
        try:
            chosen = filters.parse(wanted)
        except filters.BadFilter as error:
            chosen, wrong = filters.Filter(), str(error)
        sort = request.query_params.get("sort", "name")
        if sort.removeprefix("-") not in topics.SORT_NAMES:
            sort = "name"
        page = topics.topics_page(snapshot, Standing(snapshot.findings), chosen, sort=sort, page=page_number(request))
        return self._painter.page(
            request,
            "topics.html",
            snapshot,
            current="Topics",
            scope="topics",
            page=page,
            wanted=wanted,
            wrong=wrong,
            sort=sort,
        )

    async def topic(self, request: Request) -> Response:
        name = request.path_params["topic"]
        self._services.view.look_at(name)
        snapshot = await self._painter.picture(request, name)
        topic = snapshot.topic(name)
        if topic is None:
            return self._no_topic(request, snapshot, name)
        tab = word_of(request, "tab", _TABS_OF_TOPIC)
        return self._painter.page(
            request,
            "topic.html",
            snapshot,
            current="Topics",
            scope=f"topic:{name}",
            topic=topic,
            tab=tab,
            page=details.topic_details(snapshot, topic),
            charts=self._topic_charts(request, topic) if tab == "overview" else (),
            landing=landing(topic),
            pipeline=self._pipeline(name) if tab == "overview" else None,
            graphite=self._graphite(request, "topic", name) if tab == "overview" else (),
            m=await self._messages.of_topic(request, snapshot, topic) if tab == "messages" else None,
            policy=await self._policy.of_topic(request, snapshot, topic) if tab == "policy" else None,
        )

    async def channel(self, request: Request) -> Response:
        name, channel_name = request.path_params["topic"], request.path_params["channel"]
        self._services.view.look_at(name)
        snapshot = await self._painter.picture(request, name)
        topic = snapshot.topic(name)
        if topic is None:
            return self._no_topic(request, snapshot, name)
        channel = topic.channel(channel_name)
        if channel is None:
            return self._no_channel(request, snapshot, name, channel_name)
        tab = word_of(request, "tab", _TABS_OF_CHANNEL)
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
            page=details.channel_details(topic, channel, Standing(snapshot.findings), snapshot.taken_at),
            charts=self._channel_charts(request, channel) if tab == "overview" else (),
            graphite=self._graphite(request, "channel", name, channel_name) if tab == "overview" else (),
            m=await self._messages.of_channel(request, topic, channel) if tab == "messages" else None,
            policy=await self._policy.of_channel(request, snapshot, channel) if tab == "policy" else None,
            buried=await buried_of(self._services, self._links, request, channel) if tab == "buried" else None,
            deferred=await deferred_of(self._services, self._links, request, channel) if tab == "deferred" else None,
        )

    async def consumers(self, request: Request) -> Response:
        self._services.view.look_at()
        snapshot = await self._painter.picture(request)
        wanted = request.query_params.get("filter", "").strip()
        group = word_of(request, "group", ("host", "client_id", "user_agent", "none"))
        page = details.consumers_page(snapshot, wanted=wanted, group=group)
        return self._painter.page(
            request,
            "consumers.html",
            snapshot,
            current="Consumers",
            scope="consumers",
            page=page,
            wanted=wanted,
            group=group,
        )

    async def nodes(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        page = {"findings": details.findings_of_nodes(snapshot), "differing": details.differing_files(snapshot)}
        return self._painter.page(
            request,
            "nodes.html",
            snapshot,
            current="Nodes",
            scope="nodes",
            page=page,
            why_not_drained=partial(why_not_drained, self._services, request),
        )

    async def node(self, request: Request) -> Response:
        address = request.path_params["node"]
        snapshot = await self._painter.picture(request)
        node = snapshot.node(address)
        if node is None:
            failure = Failure(
                title="No such node",
                text=f"No nsqd is known as {address}.",
                advice="A node is named by its broadcast address and HTTP port. It may have left, or not have registered yet.",
                links=(("All nodes", self._links.to("/nodes")),),
            )
            return self._painter.failure(request, snapshot, failure)
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
            page=details.node_details(snapshot, node),
            charts=self._node_charts(request, node),
            policy=await self._policy.of_node(request, node),
            graphite=self._graphite(request, "node", address),
        )

    async def lookup(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        page = details.lookup_page(snapshot, self._links)
        return self._painter.page(
            request, "lookup.html", snapshot, current="Lookup", scope="lookup", page=page, given=None
        )

    async def activity(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        wanted = request.query_params.get("filter", "").strip()
        kind = word_of(request, "kind", ("", "actions", "events"))
        sees = identity_of(request).sees
        words = wanted.lower().split()
        rows = [
            entry
            for entry in self._services.view.activity()
            if entry.is_for(sees)
            and (not kind or entry.is_action is (kind == "actions"))
            and all(word in _words_of(entry) for word in words)
        ]
        return self._painter.page(
            request,
            "activity.html",
            snapshot,
            current="Activity",
            scope="overview",
            page=part_of(folded(rows), page_number(request)),
            wanted=wanted,
            kind=kind,
            undoable=partial(undoable, self._services, request),
        )

    async def counter(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        channels = [channel for topic in snapshot.topics for channel in topic.channels]
        page = {
            "published": sum(topic.message_count for topic in snapshot.topics),
            "delivered": sum(channel.message_count for channel in channels),
            "channels": len(channels),
        }
        return self._painter.page(
            request,
            "counter.html",
            snapshot,
            scope="counter",
            page=page,
            charts=self._cluster_charts(request, snapshot)[:1],
        )

    async def help(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        identity = identity_of(request)
        rights = (
            ("See numbers", Right.VIEW),
            ("See messages", Right.PAYLOAD),
            ("Publish", Right.PUBLISH),
            ("Pause, create, empty", Right.OPERATE),
            ("Delete, remove, move, replay", Right.ADMIN),
        )
        page = {"rights": [(label, identity.why_not(right)) for label, right in rights]}
        return self._painter.page(request, "help.html", snapshot, page=page)

    async def jump(self, request: Request) -> Response:
        """Send what the palette finds for `q=`."""
        snapshot = await self._painter.picture(request)
        found = jump.find(snapshot, self._links, request.query_params.get("q", ""))
        places = [{"name": place.name, "kind": place.kind, "href": place.href} for place in found]
        return json_answer({"found": places})

    # Missing topics and channels

    def _no_topic(self, request: Request, snapshot: Snapshot, topic: str) -> Response:
        unseen = ", ".join(missing.where for missing in snapshot.unanswered)
        advice = "It may have been deleted, or it has no messages yet."
        failure = Failure(
            title="No such topic",
            text=f"No node and no nsqlookupd that answers knows a topic “{topic}”.",
            advice=f"{advice} Or {unseen} may have it, but cannot be asked now." if unseen else advice,
            links=(
                ("All topics", self._links.to("/topics")),
                ("Create it…", self._links.action("create_topic", topic=topic)),
            ),
        )
        return self._painter.failure(request, snapshot, failure)

    def _no_channel(self, request: Request, snapshot: Snapshot, topic: str, channel: str) -> Response:
        failure = Failure(
            title="No such channel",
            text=f"The topic “{topic}” has no channel “{channel}”.",
            advice="It may have been deleted, or no consumer has subscribed to it yet. An ephemeral channel is deleted with its last consumer.",
            links=(
                (f"Topic {topic}", self._links.topic(topic)),
                ("Create it…", self._links.action("create_channel", topic=topic, channel=channel)),
            ),
        )
        return self._painter.failure(request, snapshot, failure)

    # Charts

    def _pipeline(self, topic: str) -> charts.Counts | None:
        windows = self._results.of_topic(topic) if self._results else None
        return charts.counts(windows) if windows else None

    def _graphite(self, request: Request, of: str, *names: str) -> Pictures:
        """Return graphite's pictures, if any. Options are read at each request, as /config may change them."""
        options = self._services.options
        if not options.graphite_url:
            return ()
        graphite = Graphite(
            url=options.prefix if options.proxy_graphite else without_credentials(options.graphite_url).rstrip("/"),
            statsd_prefix=options.statsd_prefix,
            counter_format=options.statsd_counter_format,
            gauge_format=options.statsd_gauge_format,
            interval=seconds(options.statsd_interval),
        )
        timeframe = word_of(request, "t", TIMEFRAMES)
        if of == "node":
            return graphite.of_node(names[0], timeframe)
        if of == "channel":
            return graphite.of_channel(names[0], names[1], timeframe)
        return graphite.of_topic(names[0], timeframe)

    def _series(self, request: Request, key: str) -> Series | None:
        return self._services.view.series(key, Span(span_of(request)))

    def _series_of_channel(self, topic: str, channel: str) -> Series | None:
        return self._services.view.series(channel_series(topic, channel), Span.MINUTES)

    def _cluster_charts(self, request: Request, snapshot: Snapshot) -> list[charts.Chart]:
        series = self._series(request, CLUSTER_SERIES)
        line = _lines("cluster")
        drawn = partial(charts.chart, is_partial=bool(snapshot.silent))
        return [
            drawn(
                "In and out",
                series,
                [line(Metric.INCOMING, "in", "c1"), line(Metric.FINISHED, "out", "c2")],
                form="rate",
            ),
            drawn("Waiting", series, [line(Metric.DEPTH, "depth", "c1", filled=True)]),
            drawn("In flight", series, [line(Metric.IN_FLIGHT, "in flight", "c3")]),
            drawn("Problems, warnings", series, [line(Metric.FINDINGS, "now", "c4", filled=True)]),
        ]

    def _topic_charts(self, request: Request, topic: Topic) -> list[charts.Chart]:
        series = self._series(request, topic_series(topic.name))
        line = _lines(f"topics/{topic.name}")
        drawn = partial(charts.chart, is_partial=bool(topic.silent))
        return [
            drawn("Published", series, [line(Metric.INCOMING, "in", "c1", filled=True)], form="rate"),
            drawn("Waiting in the topic", series, [line(Metric.DEPTH, "depth", "c3", filled=True)]),
            drawn("Bytes published", series, [line(Metric.BYTES, "bytes", "c2")], form="size_rate"),
        ]

    def _channel_charts(self, request: Request, channel: Channel) -> list[charts.Chart]:
        series = self._series(request, channel_series(channel.topic, channel.name))
        line = _lines(f"topics/{channel.topic}/{channel.name}")
        drawn = partial(charts.chart, is_partial=bool(channel.silent))
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
                "Failures",
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

    def _node_charts(self, request: Request, node: Node) -> list[charts.Chart]:
        series = self._series(request, node_series(node.address))
        line = _lines(f"nodes/{node.address}")
        drawn = partial(charts.chart, is_partial=not node.is_reachable)
        return [
            drawn("Published", series, [line(Metric.INCOMING, "in", "c1", filled=True)], form="rate"),
            drawn("Depth", series, [line(Metric.DEPTH, "depth", "c1", filled=True)]),
            drawn("In flight", series, [line(Metric.IN_FLIGHT, "in flight", "c3")]),
        ]


def _lines(prefix: str) -> Callable[..., Line]:
    def line(metric: Metric, label: str, colour: str, *, filled: bool = False) -> Line:
        return Line(metric=metric, label=label, colour=colour, key=f"{prefix}/{metric}", filled=filled)

    return line


def _words_of(entry: Activity) -> str:
    about = f"{entry.topic}/{entry.channel} {' '.join(entry.nodes)}"
    return f"{entry.text} {entry.what} {entry.user} {entry.remote} {about} {entry.result}".lower()
