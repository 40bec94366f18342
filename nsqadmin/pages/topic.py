"""One topic: its numbers, channels, nodes, producers, messages and policy, one tab each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.model import Finding, Metric, Producer, Snapshot, Topic, topic_series
from nsqadmin.cluster.pipeline_file import PipelineResults
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.pages.action import curls_of_topic
from nsqadmin.pages.error import Failure, error_page
from nsqadmin.parts import charts
from nsqadmin.parts.charts import lines_of
from nsqadmin.parts.messages import MessagesTab, history_nodes, no_history
from nsqadmin.parts.opened import Opened, beside
from nsqadmin.parts.painter import graphite_of, timeframe_of, word_of
from nsqadmin.parts.policies import PolicyTab
from nsqadmin.parts.policy import lines_of_cluster, lines_of_topic
from nsqadmin.parts.readers import landing
from nsqadmin.parts.silence import unknown_part
from nsqadmin.parts.timeline import timeline_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.policy import CauseLine
    from nsqadmin.parts.timeline import Timeline
    from nsqadmin.services import Services

_TABS: Final = ("overview", "channels", "nodes", "producers", "messages", "policy")


def routes(services: Services, painter: Painter) -> list[Route]:
    page = _TopicPage(services, painter)
    return [
        Route("GET", "/topics/{topic}", painter.cached(page.show)),
        Route("GET", "/tail/{topic}", page.messages.tail),
    ]


class _TopicPage:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._policy = PolicyTab(services)
        self.messages = MessagesTab(services, painter)
        results = services.options.pipeline_results
        self._results = PipelineResults(results) if results else None

    async def show(self, request: Request) -> Response:
        name = request.path_params["topic"]
        self._services.view.look_at(name)
        snapshot = await self._painter.picture(request, name)
        topic = snapshot.topic(name)
        if topic is None:
            return no_topic(self._painter, request, snapshot, name)
        tab = word_of(request, "tab", _TABS)
        is_overview = tab == "overview"
        timeline = timeline_of(
            self._services, request, snapshot, topic=topic.name, nodes={row.node for row in topic.nodes}
        )
        graphite = graphite_of(self._services) if is_overview else None
        return self._painter.page(
            request,
            "topic.html",
            snapshot,
            current="Topics",
            scope=f"topic:{name}",
            topic=topic,
            tab=tab,
            page=topic_details(snapshot, topic),
            charts=self._charts(timeline, topic) if is_overview else (),
            timeline=timeline,
            landing=landing(topic),
            pipeline=self._pipeline(name) if is_overview else None,
            graphite=graphite.of_topic(name, timeframe_of(request)) if graphite else (),
            opened=await self._opened(request, snapshot, name) if tab == "messages" else None,
            m=await self.messages.of_topic(request, snapshot, topic) if tab == "messages" else None,
            policy=await self._policy.of_topic(request, snapshot, topic) if tab == "policy" else None,
            effects=lines_of_cluster(snapshot) if tab == "policy" else (),
        )

    async def _opened(self, request: Request, snapshot: Snapshot, topic: str) -> Opened | None:
        return await beside(self._services, self._painter.links, request, snapshot, identity_of(request), topic)

    def _pipeline(self, topic: str) -> charts.PipelineCharts | None:
        windows = self._results.of_topic(topic) if self._results else None
        return charts.counts(windows) if windows else None

    def _charts(self, timeline: Timeline, topic: Topic) -> list[charts.Chart]:
        series = timeline.series(self._services, topic_series(topic.name))
        line = lines_of(f"topics/{topic.name}")
        drawn = partial(charts.chart, window=timeline.window, is_partial=bool(topic.silent))
        return [
            drawn("Published", series, [line(Metric.INCOMING, "in", "c1", filled=True)], form="rate"),
            drawn("Waiting in the topic", series, [line(Metric.DEPTH, "depth", "c3", filled=True)]),
            drawn("Bytes published", series, [line(Metric.BYTES, "bytes", "c2")], form="size_rate"),
        ]


def no_topic(painter: Painter, request: Request, snapshot: Snapshot, topic: str) -> Response:
    unseen = ", ".join(missing.where for missing in snapshot.unanswered)
    advice = "It may have been deleted, or it has no messages yet."
    none = f"No node and no nsqlookupd that answers knows a topic “{topic}”."
    unknown = unknown_part(snapshot)
    failure = Failure(
        title=f"Topic {topic} was not found" if unknown else "No such topic",
        text=f"{unknown} {none}" if unknown else none,
        advice=f"{advice} Or {unseen} may have it, but cannot be asked now." if unseen else advice,
        links=(
            ("All topics", painter.links.to("/topics")),
            ("Create it…", painter.links.action("create_topic", topic=topic)),
        ),
    )
    return error_page(painter, request, snapshot, failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRow:
    producer: Producer
    count: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class Ack:
    """A topic's --ack on a node that keeps a copy in an object store."""

    word: str

    @property
    def promise(self) -> str:
        return _PROMISES.get(self.word, "not known here")


_PROMISES: Final = {
    "memory": "it is in memory; a crash of nsqd loses messages not yet written, a lost machine those not yet copied",
    "written": "it survives a crash of nsqd; a lost machine loses messages not yet copied, usually the last second",
    "synced": "it survives a power cut; a lost machine loses messages not yet copied, usually the last second",
    "remote": "the store has it, so it survives the loss of the machine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    topic: Topic
    findings: tuple[Finding, ...]
    producers: tuple[ProducerRow, ...] | None
    history_nodes: tuple[str, ...]
    no_history: str
    curls: tuple[tuple[str, str], ...]
    policy: tuple[CauseLine, ...]
    acks: tuple[tuple[Ack, tuple[str, ...]], ...]  # each with its nodes

    def channels_on(self, address: str) -> int:
        return sum(row.node == address for channel in self.topic.channels for row in channel.nodes)


def topic_details(snapshot: Snapshot, topic: Topic) -> TopicDetails:
    own = [finding for finding in snapshot.findings if finding.topic == topic.name]
    return TopicDetails(
        topic=topic,
        findings=tuple(own),
        producers=_producers(snapshot, topic.name),
        history_nodes=history_nodes(topic),
        no_history=no_history(topic),
        curls=curls_of_topic(topic),
        policy=lines_of_topic(topic),
        acks=acks_of(topic),
    )


def acks_of(topic: Topic) -> tuple[tuple[Ack, tuple[str, ...]], ...]:
    nodes: dict[str, list[str]] = {}
    for row in topic.nodes if not topic.is_ephemeral else ():
        if row.ack:
            nodes.setdefault(row.ack, []).append(row.node)
    return tuple((Ack(word), tuple(nodes[word])) for word in sorted(nodes))


def _producers(snapshot: Snapshot, topic: str) -> tuple[ProducerRow, ...] | None:
    if snapshot.producers is None:
        return None
    rows = [
        ProducerRow(producer=producer, count=count, rate=rate)
        for producer in snapshot.producers
        for name, count, rate in producer.counts
        if name == topic
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.rate or 0.0), -row.count)))
