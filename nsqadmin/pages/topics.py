"""The list of topics with their channels: filtered, sorted, and divided into pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqadmin.cluster.internal import is_internal
from nsqadmin.cluster.model import Channel, Metric, Paused, Snapshot, Topic, channel_series, topic_series
from nsqadmin.http.app import Route
from nsqadmin.parts.filters import BadTopicFilter, TopicFilter, parse
from nsqadmin.parts.sparks import Sparks
from nsqadmin.parts.status import Standing
from nsqadmin.parts.tables import Part, page_number, part_of, sorted_rows

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.painter import Painter
    from nsqadmin.parts.sparks import Spark
    from nsqadmin.parts.status import State
    from nsqadmin.services import Services

PER_PAGE: Final = 50  # topics: with their channels some hundred rows, or as many cards on a phone
MOST_CHANNELS: Final = 20  # of one topic in the list; the topic's own page shows all


def routes(services: Services, painter: Painter) -> list[Route]:
    async def page(request: Request) -> Response:
        snapshot = await painter.picture(request)
        wanted, wrong = request.query_params.get("filter", "").strip(), ""
        try:
            chosen = parse(wanted)
        except BadTopicFilter as error:
            chosen, wrong = TopicFilter(), str(error)
        sort = request.query_params.get("sort", "name")
        if sort.removeprefix("-") not in SORT_NAMES:
            sort = "name"
        return painter.page(
            request,
            "topics.html",
            snapshot,
            current="Topics",
            scope="topics",
            page=topics_page(snapshot, Standing(snapshot.findings), chosen, sort=sort, page=page_number(request)),
            wanted=wanted,
            wrong=wrong,
            sort=sort,
            spark_of=partial(depth_spark, Sparks(services.view)),
        )

    return [Route("GET", "/topics", painter.cached(page))]


@dataclass(frozen=True, slots=True)
class ChannelRow:
    channel: Channel
    state: State
    path: str
    states: frozenset[str]
    impact: float

    @property
    def is_ephemeral(self) -> bool:
        return self.channel.is_ephemeral

    def number(self, name: str) -> float | None:
        return _CHANNEL_NUMBERS[name](self.channel)


@dataclass(frozen=True, slots=True)
class TopicRow:
    topic: Topic
    state: State
    path: str
    states: frozenset[str]
    channels: tuple[ChannelRow, ...]
    worst: ChannelRow | None = (
        None  # of all its channels, including the ones a filter hides; None: all are fine and empty
    )
    left_out: int = 0
    impact: float = 0.0  # the worst of the topic and of its channels
    is_context: bool = False  # it does not match the filter itself, but some of its channels do

    @property
    def is_ephemeral(self) -> bool:
        return self.topic.is_ephemeral

    def number(self, name: str) -> float | None:
        return _TOPIC_NUMBERS[name](self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsPage:
    rows: tuple[TopicRow, ...]
    matching: int  # topics
    total: int
    page: int
    pages: int
    internal: int  # topics that are folded away, because only libraries use them
    deepest: int  # the largest depth of any topic, shown as a full bar


_CHANNEL_NUMBERS: Final[Mapping[str, Callable[[Channel], float | None]]] = {
    "depth": lambda channel: channel.depth,
    "in": lambda channel: channel.rates.incoming,
    "inflight": lambda channel: channel.in_flight_count,
    "deferred": lambda channel: channel.deferred_count,
    "buried": lambda channel: channel.buried_count,
    "consumers": lambda channel: channel.client_count,
    "nodes": lambda channel: len(channel.nodes),
    "silent": lambda channel: len(channel.silent),
    "drain": lambda channel: channel.drain_time,
    "lag": lambda channel: channel.oldest_age,
    "requeues": lambda channel: channel.rates.requeued,
    "timeouts": lambda channel: channel.rates.timed_out,
}
_TOPIC_NUMBERS: Final[Mapping[str, Callable[[Topic], float | None]]] = {
    "depth": lambda topic: topic.depth,
    "in": lambda topic: topic.rates.incoming,
    "inflight": lambda topic: None,
    "deferred": lambda topic: None,
    "buried": lambda topic: None,
    "consumers": lambda topic: None,
    "nodes": lambda topic: len(topic.nodes),
    "silent": lambda topic: len(topic.silent),
    "drain": lambda topic: None,
    "lag": lambda topic: None,
    "requeues": lambda topic: None,
    "timeouts": lambda topic: None,
}


def depth_spark(sparks: Sparks, of: Topic | Channel) -> Spark | None:
    """Draw the depth of a channel, or of a topic with all of its channels."""
    if isinstance(of, Channel):
        return sparks.of(Metric.DEPTH, (channel_series(of.topic, of.name),))
    keys = [topic_series(of.name), *(channel_series(of.name, it.name) for it in of.channels)]
    return sparks.of(Metric.DEPTH, keys)


def trouble(channel: Channel) -> float | None:
    """Return the rate of requeues and timeouts together, over the last minute."""
    return channel.rates.failed


_Key = Callable[[Channel], float | None]
# Sort keys besides the name; a topic is sorted by its highest channel.
SORTS: Final[Mapping[str, _Key]] = {
    "depth": lambda channel: channel.depth,
    "in": lambda channel: channel.rates.incoming,
    "net": lambda channel: channel.net_rate,
    "drain": lambda channel: channel.drain_time,
    "lag": lambda channel: channel.oldest_age,
    "inflight": lambda channel: channel.in_flight_count,
    "consumers": lambda channel: channel.client_count,
    "trouble": trouble,
}
SORT_NAMES: Final = frozenset(("name", "state", *SORTS))
_STATE_ORDER: Final = {"problem": 3, "warning": 2, "ok": 1, "muted": 0}


def topics_page(
    snapshot: Snapshot, standing: Standing, wanted: TopicFilter, *, sort: str = "name", page: int = 1
) -> TopicsPage:
    """Return a page of the list. `sort` is one of SORT_NAMES; a leading dash puts the greatest first."""
    word = sort.removeprefix("-")
    shown = [it for it in snapshot.topics if not is_internal(it.name)] if wanted.is_empty else snapshot.topics
    if wanted.is_empty and word in _BY_TOPIC:
        topics = part_of(sorted_rows(shown, _BY_TOPIC[word], sort), page, per_page=PER_PAGE)
        # We only build rows for the topics on this page, not for ten thousand channels.
        rows = tuple(_whole_row(topic, standing) for topic in topics.rows)
        part = Part(rows=rows, page=topics.page, pages=topics.pages, total=topics.total)
    else:
        every = [row for topic in shown if (row := _row(topic, standing, wanted)) is not None]
        part = part_of(sorted_rows(every, _row_key(word), sort), page, per_page=PER_PAGE)
    return TopicsPage(
        rows=tuple(_cut(row, sort) for row in part.rows),
        matching=part.total,
        total=len(snapshot.topics),
        page=part.page,
        pages=part.pages,
        internal=len(snapshot.topics) - len(shown),
        deepest=max((topic.total_depth for topic in snapshot.topics), default=0),
    )


def _row(topic: Topic, standing: Standing, wanted: TopicFilter) -> TopicRow | None:
    """Return the row of a topic: with all channels if the topic matches, otherwise with the matching channels."""
    row = _whole_row(topic, standing)
    if wanted.matches(row):
        return row
    matching = tuple(channel for channel in row.channels if wanted.matches(channel))
    return replace(row, channels=matching, is_context=True) if matching else None


def _whole_row(topic: Topic, standing: Standing) -> TopicRow:
    channels = tuple(_channel_row(channel, standing) for channel in topic.channels)
    state = standing.whole_topic(topic)
    impact = max((row.impact for row in channels), default=0.0)
    impact = max(standing.impact(topic.name) or _at_least(state), impact)
    states = _states(state, topic.paused, topic.is_inactive) | (
        {"internal"} if is_internal(topic.name) else frozenset()
    )
    return TopicRow(topic, state, topic.name, states, channels, _worst_of(channels), impact=impact)


def _worst_of(channels: Sequence[ChannelRow]) -> ChannelRow | None:
    """Return the channel with the worst state, or the deepest if all are fine; None if there is nothing to say."""
    if in_trouble := [row for row in channels if row.state.kind != "ok"]:
        return max(in_trouble, key=lambda row: (row.impact, row.channel.depth))
    deepest = max(channels, key=lambda row: row.channel.depth, default=None)
    return deepest if deepest is not None and deepest.channel.depth else None


def _channel_row(channel: Channel, standing: Standing) -> ChannelRow:
    state = standing.channel(channel)
    impact = standing.impact(channel.topic, channel.name) or _at_least(state)
    return ChannelRow(channel, state, f"{channel.topic}/{channel.name}", _states(state, channel.paused), impact)


def _at_least(state: State) -> float:
    """Return the impact of something without findings, so that what is unknown or paused comes before what is fine."""
    return _STATE_ORDER.get(state.kind, 0) / 10


def _states(state: State, paused: Paused, is_inactive: bool = False) -> frozenset[str]:
    states = set(state.kinds)
    if paused is not Paused.NO:
        states.add("paused")
    if is_inactive:
        states.add("inactive")
    return frozenset(states)


_BY_TOPIC: Final[Mapping[str, Callable[[Topic], float | str | None]]] = {
    "name": lambda topic: topic.name,
    "depth": lambda topic: topic.total_depth,
    "in": lambda topic: topic.rates.incoming,
}


def _row_key(name: str) -> Callable[[TopicRow], float | str | None]:
    if name in _BY_TOPIC:
        of_topic = _BY_TOPIC[name]
        return lambda row: of_topic(row.topic)
    if name == "state":
        return lambda row: row.impact
    key = SORTS[name]
    return lambda row: max((value for each in row.channels if (value := key(each.channel)) is not None), default=None)


def _cut(row: TopicRow, sort: str) -> TopicRow:
    """Sort the row's channels in the same way, and drop the ones that don't fit."""
    name = sort.removeprefix("-")
    channels = list(row.channels)
    if name in SORTS:
        key = SORTS[name]
        channels = sorted_rows(channels, lambda each: key(each.channel), sort)
    left_out = max(0, len(channels) - MOST_CHANNELS)
    return replace(row, channels=tuple(channels[:MOST_CHANNELS]), left_out=left_out)
