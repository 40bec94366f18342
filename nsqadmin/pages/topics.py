"""The tree of topics and channels: filtered, sorted, and cut into pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nsqadmin.cluster.model import Channel, Paused, Snapshot, Topic

if TYPE_CHECKING:
    from nsqadmin.pages.filters import Filter
    from nsqadmin.pages.status import Standing, State

T = TypeVar("T")

PER_PAGE: Final = 100  # topics
MOST_CHANNELS: Final = 20  # of one topic in the list; its own page shows all


@dataclass(frozen=True, slots=True)
class ChannelRow:
    channel: Channel
    state: State
    path: str
    states: frozenset[str]

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
    left_out: int = 0

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
    deepest: int  # of all channels that are shown: what a full bar means


_CHANNEL_NUMBERS: Final[Mapping[str, Callable[[Channel], float | None]]] = {
    "depth": lambda it: it.depth,
    "in": lambda it: it.rates.incoming,
    "inflight": lambda it: it.in_flight_count,
    "deferred": lambda it: it.deferred_count,
    "consumers": lambda it: it.client_count,
    "nodes": lambda it: len(it.nodes),
    "drain": lambda it: it.drain_time,
    "lag": lambda it: it.oldest_age,
    "requeues": lambda it: it.rates.requeued,
    "timeouts": lambda it: it.rates.timed_out,
}
_TOPIC_NUMBERS: Final[Mapping[str, Callable[[Topic], float | None]]] = {
    "depth": lambda it: it.depth,
    "in": lambda it: it.rates.incoming,
    "inflight": lambda it: None,
    "deferred": lambda it: None,
    "consumers": lambda it: None,
    "nodes": lambda it: len(it.nodes),
    "drain": lambda it: None,
    "lag": lambda it: None,
    "requeues": lambda it: None,
    "timeouts": lambda it: None,
}


def net_rate(channel: Channel) -> float | None:
    return channel.net_rate


def trouble(channel: Channel) -> float | None:
    """Requeues and timeouts a second."""
    requeued, timed_out = channel.rates.requeued, channel.rates.timed_out
    return None if requeued is None and timed_out is None else (requeued or 0.0) + (timed_out or 0.0)


_Key = Callable[[Channel], float | None]
# What one may sort by besides the name; a topic counts as its worst channel.
SORTS: Final[Mapping[str, _Key]] = {
    "depth": lambda it: it.depth,
    "in": lambda it: it.rates.incoming,
    "net": net_rate,
    "drain": lambda it: it.drain_time,
    "lag": lambda it: it.oldest_age,
    "inflight": lambda it: it.in_flight_count,
    "consumers": lambda it: it.client_count,
    "trouble": trouble,
}
SORT_NAMES: Final = frozenset(("name", "state", *SORTS))
_STATE_ORDER: Final = {"problem": 3, "warning": 2, "ok": 1, "muted": 0}


def topics_page(
    snapshot: Snapshot, standing: Standing, wanted: Filter, *, sort: str = "name", page: int = 1
) -> TopicsPage:
    """`sort` is a name of SORT_NAMES, with a dash before it: the greatest first."""
    word = sort.removeprefix("-")
    if wanted.is_empty and word in _BY_TOPIC:
        found, page, pages = _page_of(_sorted(snapshot.topics, _BY_TOPIC[word], sort), page)
        # Of ten thousand channels only those that are shown become rows.
        rows = [_whole_row(topic, standing) for topic in found]
        matching = len(snapshot.topics)
    else:
        every = [row for topic in snapshot.topics if (row := _row(topic, standing, wanted)) is not None]
        rows, page, pages = _page_of(_sorted(every, _row_key(word), sort), page)
        matching = len(every)
    return TopicsPage(
        rows=tuple(_cut(row, sort) for row in rows),
        matching=matching,
        total=len(snapshot.topics),
        page=page,
        pages=pages,
        deepest=max((it.total_depth for it in snapshot.topics), default=0),
    )


def _page_of(rows: Sequence[T], page: int) -> tuple[list[T], int, int]:
    """The rows of the page, its number, and how many there are."""
    pages = max(1, -(-len(rows) // PER_PAGE))
    page = min(max(1, page), pages)
    return list(rows[(page - 1) * PER_PAGE : page * PER_PAGE]), page, pages


def _sorted(rows: Iterable[T], key: Callable[[T], float | str | None], sort: str) -> list[T]:
    """Unknown is last, whichever way: it is neither much nor little."""
    values = [(key(row), row) for row in rows]
    known: list[tuple[Any, T]] = [pair for pair in values if pair[0] is not None]
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in known] + [row for value, row in values if value is None]


def _row(topic: Topic, standing: Standing, wanted: Filter) -> TopicRow | None:
    """A topic is shown with those channels that match; with all of them when it matches itself."""
    row = _whole_row(topic, standing)
    if wanted.matches(row):
        return row
    matching = tuple(it for it in row.channels if wanted.matches(it))
    return replace(row, channels=matching) if matching else None


def _whole_row(topic: Topic, standing: Standing) -> TopicRow:
    channels = tuple(_channel_row(channel, standing) for channel in topic.channels)
    state = standing.whole_topic(topic)
    return TopicRow(topic, state, topic.name, _states(state, topic.paused, topic.is_inactive), channels)


def _channel_row(channel: Channel, standing: Standing) -> ChannelRow:
    state = standing.channel(channel)
    return ChannelRow(channel, state, f"{channel.topic}/{channel.name}", _states(state, channel.paused))


def _states(state: State, paused: Paused, is_inactive: bool = False) -> frozenset[str]:
    states = {state.kind}
    if paused is not Paused.NO:
        states.add("paused")
    if is_inactive:
        states.add("inactive")
    return frozenset(states)


_BY_TOPIC: Final[Mapping[str, Callable[[Topic], float | str | None]]] = {
    "name": lambda it: it.name,
    "depth": lambda it: it.total_depth,
    "in": lambda it: it.rates.incoming,
}


def _row_key(name: str) -> Callable[[TopicRow], float | str | None]:
    if name in _BY_TOPIC:
        of_topic = _BY_TOPIC[name]
        return lambda row: of_topic(row.topic)
    if name == "state":
        return lambda row: max(_STATE_ORDER.get(it.kind, 0) for it in (row.state, *(ch.state for ch in row.channels)))
    key = SORTS[name]
    return lambda row: max((it for ch in row.channels if (it := key(ch.channel)) is not None), default=None)


def _cut(row: TopicRow, sort: str) -> TopicRow:
    """Its channels in the same order, and not more of them than fit."""
    name = sort.removeprefix("-")
    channels = list(row.channels)
    if name in SORTS:
        key = SORTS[name]
        channels = _sorted(channels, lambda it: key(it.channel), sort)
    left_out = max(0, len(channels) - MOST_CHANNELS)
    return replace(row, channels=tuple(channels[:MOST_CHANNELS]), left_out=left_out)
