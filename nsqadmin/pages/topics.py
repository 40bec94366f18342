"""The tree of topics and channels: filtered, sorted, and cut into pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin.model import Channel, Paused, Snapshot, Topic
from nsqadmin.pages import numbers
from nsqadmin.pages.standing import State

if TYPE_CHECKING:
    from nsqadmin.pages.filters import Filter
    from nsqadmin.pages.standing import Standing

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
    paused: int
    in_trouble: int
    inactive: int


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
    rows = [row for topic in snapshot.topics if (row := _row(topic, standing, wanted)) is not None]
    _sort(rows, sort)
    pages = max(1, -(-len(rows) // PER_PAGE))
    page = min(max(1, page), pages)
    shown = tuple(_cut(row, sort) for row in rows[(page - 1) * PER_PAGE : page * PER_PAGE])
    channels = [channel for topic in snapshot.topics for channel in topic.channels]
    return TopicsPage(
        rows=shown,
        matching=len(rows),
        total=len(snapshot.topics),
        page=page,
        pages=pages,
        deepest=max((it.total_depth for it in snapshot.topics), default=0),
        paused=sum(it.paused is not Paused.NO for it in channels)
        + sum(it.paused is not Paused.NO for it in snapshot.topics),
        in_trouble=len({(it.topic, it.channel) for it in snapshot.findings if it.topic and it.severity != "info"}),
        inactive=sum(it.is_inactive for it in snapshot.topics),
    )


def _row(topic: Topic, standing: Standing, wanted: Filter) -> TopicRow | None:
    """A topic is shown with those channels that match; with all of them when it matches itself."""
    channels = tuple(_channel_row(channel, standing) for channel in topic.channels)
    state = _with_channels(standing.topic(topic), channels)
    row = TopicRow(topic, state, topic.name, _states(state, topic.paused, topic.is_inactive), channels)
    if wanted.is_empty or wanted.matches(row):
        return row
    matching = tuple(it for it in channels if wanted.matches(it))
    return TopicRow(topic, state, topic.name, row.states, matching) if matching else None


def _with_channels(own: State, channels: tuple[ChannelRow, ...]) -> State:
    """What is wrong in a channel is also seen at its topic, when that is folded."""
    if own.kind != "ok":
        return own
    for kind in ("problem", "warning"):
        if number := sum(it.state.kind == kind for it in channels):
            return State(numbers.several(number, kind), kind)
    return own


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


def _sort(rows: list[TopicRow], sort: str) -> None:
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if name == "name":
        rows.sort(key=lambda row: row.topic.name, reverse=descending)
        return
    key = _topic_key(name)
    values = [(key(row), row) for row in rows]
    # Unknown is last, whichever way: it is neither much nor little.
    known = [(value, row) for value, row in values if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=descending)
    rows[:] = [row for _, row in known] + [row for value, row in values if value is None]


def _topic_key(name: str) -> Callable[[TopicRow], float | None]:
    if name == "state":
        return lambda row: max(_STATE_ORDER.get(it.kind, 0) for it in (row.state, *(ch.state for ch in row.channels)))
    if name == "in":
        return lambda row: row.topic.rates.incoming
    if name == "depth":
        return lambda row: row.topic.total_depth
    key = SORTS[name]
    return lambda row: max((it for ch in row.channels if (it := key(ch.channel)) is not None), default=None)


def _cut(row: TopicRow, sort: str) -> TopicRow:
    channels = list(row.channels)
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if name in SORTS:
        key = SORTS[name]
        channels.sort(
            key=lambda it: (
                (value := key(it.channel)) is None,
                (-value if descending else value) if value is not None else 0,
            )
        )
    return TopicRow(
        row.topic,
        row.state,
        row.path,
        row.states,
        tuple(channels[:MOST_CHANNELS]),
        max(0, len(channels) - MOST_CHANNELS),
    )
