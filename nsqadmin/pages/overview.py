"""The first page: the cluster's health, the worst problems, and the channels with the highest numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.cluster.internal import is_internal
from nsqadmin.cluster.model import (
    CLUSTER_SERIES,
    Channel,
    Metric,
    Severity,
    Snapshot,
)
from nsqadmin.diagnosis.incident_book import in_view
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of
from nsqadmin.pages.topics import trouble
from nsqadmin.parts import charts
from nsqadmin.parts.charts import lines_of
from nsqadmin.parts.incident_cards import MOST_CARDS, Listing, listing, verdict
from nsqadmin.parts.rendering import STANDSTILL, known_part, trend_of
from nsqadmin.parts.silence import unknown_part, unless_unknown
from nsqadmin.parts.timeline import timeline_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.diagnosis.incident import Open
    from nsqadmin.parts.links import Links
    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.timeline import Timeline
    from nsqadmin.services import Services

TOP: Final = 5


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        snapshot = await painter.picture(request)
        timeline = timeline_of(services, request, snapshot)
        incidents = services.incidents.seen_by(identity_of(request))
        return painter.page(
            request,
            "overview.html",
            snapshot,
            current="Overview",
            scope="overview",
            page=overview(snapshot, incidents, painter.links),
            charts=cluster_charts(services, timeline, snapshot),
            timeline=timeline,
        )

    return [Route("GET", "/", painter.cached(page))]


def cluster_charts(services: Services, timeline: Timeline, snapshot: Snapshot) -> list[charts.Chart]:
    """Draw the strip at the top: what waits, how fast, and what is wrong."""
    series = timeline.series(services, CLUSTER_SERIES)
    line = lines_of("cluster")
    drawn = partial(charts.chart, window=timeline.window, is_partial=bool(snapshot.silent))
    has_jobs = services.jobs is not None and services.jobs.book.has_reports
    return [
        drawn("Waiting", series, [line(Metric.DEPTH, "depth", "c1", filled=True)]),
        in_and_out(services, timeline, snapshot),
        drawn("Problems", series, [line(Metric.PROBLEMS, "open", "c4", filled=True)]),
        drawn("Failed jobs", series, [line(Metric.FAILED_JOBS, "failed", "c5", filled=True)], form="per_minute")
        if has_jobs
        else drawn("In flight", series, [line(Metric.IN_FLIGHT, "in flight", "c3")]),
    ]


def in_and_out(services: Services, timeline: Timeline, snapshot: Snapshot) -> charts.Chart:
    line = lines_of("cluster")
    return charts.chart(
        "In and out",
        timeline.series(services, CLUSTER_SERIES),
        [line(Metric.INCOMING, "in", "c1"), line(Metric.FINISHED, "out", "c2")],
        form="rate",
        window=timeline.window,
        is_partial=bool(snapshot.silent),
    )


@dataclass(frozen=True, slots=True)
class TopRow:
    """A channel in a list of the highest."""

    topic: str
    name: str
    value: str
    known: str  # the nodes whose numbers the value has; empty: all
    beside: str  # a second number: the net rate in a list by depth, the depth in the others

    @property
    def title(self) -> str:
        return f"{self.topic}/{self.name}"


@dataclass(frozen=True, slots=True)
class Top:
    """A list of the channels with the highest values."""

    title: str
    label: str
    word: str  # entry in the glossary
    sort: str  # sort key with which the topics page shows the rest
    rows: tuple[TopRow, ...]
    nothing: str  # text for an empty list


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    kind: str  # ok, warning, problem
    verdict: str
    nodes_up: int
    lookupds_up: int
    incidents: Listing
    calm: str  # instead of cards, if there are none
    calm_kind: str
    slowest: Channel | None
    known: str  # the part that the lists don't have; empty: they have all
    tops: tuple[Top, ...]


def overview(snapshot: Snapshot, incidents: tuple[Open, ...], links: Links) -> Overview:
    attention, _, _ = in_view(incidents)
    channels = [it for topic in snapshot.topics if not is_internal(topic.name) for it in topic.channels]
    draining = [channel for channel in channels if channel.drain_time]
    unknown = unknown_part(snapshot)
    shown = listing(incidents, links, most=MOST_CARDS)
    said = verdict(attention, is_first=not snapshot.index)
    return Overview(
        kind=_kind(snapshot, attention),
        verdict=said if attention or not snapshot.index else unless_unknown(snapshot, said),
        nodes_up=sum(node.is_reachable for node in snapshot.nodes),
        lookupds_up=sum(lookupd.is_reachable for lookupd in snapshot.lookupds),
        incidents=shown,
        calm=unknown or ("Nothing else needs attention." if shown.muted else "All channels keep up."),
        calm_kind="warning" if unknown else "ok",
        slowest=max(draining, key=lambda channel: channel.drain_time or 0.0, default=None),
        known=unknown if snapshot.index else "",
        tops=_tops(snapshot, channels),
    )


def _kind(snapshot: Snapshot, attention: Iterable[Open]) -> str:
    severities = {it.incident.severity for it in attention}
    if Severity.PROBLEM in severities:
        return "problem"
    if Severity.WARNING in severities or snapshot.unanswered:
        return "warning"
    return "ok" if snapshot.index else "info"


def _tops(snapshot: Snapshot, channels: Sequence[Channel]) -> tuple[Top, ...]:
    def top(
        title: str,
        label: str,
        word: str,
        sort: str,
        key: Callable[[Channel], float | None],
        write: Callable[[float | None], str],
        nothing: str,
        *,
        adds_up: bool = True,
        of: Callable[[Channel], str] = lambda _: "",
    ) -> Top:
        ranked = [(value, channel) for channel in channels if (value := key(channel)) is not None and value > 0]
        ranked.sort(key=lambda pair: (-pair[0], pair[1].topic, pair[1].name))
        rows = tuple(
            TopRow(
                channel.topic,
                channel.name,
                (f"≥ {write(value)}" if adds_up and channel.silent else write(value)) + of(channel),
                known_part(channel) if sort != "depth" else "",
                trend_of(channel) if sort == "depth" else numbers.count(channel.depth),
            )
            for value, channel in ranked[:TOP]
        )
        return Top(title, label, word, sort, rows, unless_unknown(snapshot, nothing))

    return (
        top(
            "Deepest",
            "Depth",
            "depth",
            "depth",
            lambda each: each.depth,
            numbers.count,
            "No messages wait.",
            adds_up=False,  # the last known numbers are in it
        ),
        top("Growing fastest", "Net rate", "net-rate", "net", _growth, numbers.net, "No backlog grows."),
        top("Busiest", "In", "in-rate", "in", lambda each: each.rates.incoming, numbers.rate, "Nothing arrives now."),
        top(
            "Most requeues and timeouts",
            "Share of deliveries",
            "failures",
            "trouble",
            _failing,
            numbers.percent,
            "Nothing is requeued or times out.",
            adds_up=False,
            of=_of_deliveries,
        ),
    )


def _growth(channel: Channel) -> float | None:
    value = channel.net_rate
    return value if value is not None and value >= STANDSTILL else None


def _failing(channel: Channel) -> float | None:
    """Return the share of deliveries that fail."""
    failed, finished = trouble(channel), channel.rates.finished
    if not failed or finished is None:
        return None
    return failed / (failed + max(0.0, finished))


def _of_deliveries(channel: Channel) -> str:
    """Return of how many deliveries a share is: all of almost none is no alarm."""
    return f" of {numbers.per_minute((trouble(channel) or 0.0) + max(0.0, channel.rates.finished or 0.0))}"
