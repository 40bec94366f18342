"""The nodes' policy files and their effects on messages, for the pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.cluster.model import Channel
from nsqadmin.cluster.policies import files_of, rows_of
from nsqadmin.messages.policy_words import TEXTS
from nsqadmin.parts.status import State
from nsqcommon.limits_of_nodes import sum_in_words

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode, Snapshot, Topic, TopicNode
    from nsqadmin.cluster.policies import File, NodePolicy, Row

_STATES: Final = (
    (", dropped", State("Lost", "problem")),
    (", rejected", State("Refused", "problem")),
    (", dry run", State("Dry run", "muted")),
)
_KEPT: Final = State("Held back", "info")
_ORDER: Final = ("problem", "info", "muted")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNode:
    node: str
    count: int
    recent: int | None  # None: the node doesn't answer now


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseLine:
    """One cause of a topic or a channel."""

    topic: str
    channel: str  # empty: the topic itself
    cause: str
    state: State
    text: str  # the outcome for the messages
    count: int  # since the nodes started
    recent: int  # of the last five minutes
    nodes: tuple[OnNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPage:
    parts: tuple[tuple[str, str, tuple[Row, ...]], ...]  # each with its title and its subject in one word
    files: tuple[File, ...]  # the most frequent first
    untold: tuple[NodePolicy, ...]
    shows_files: bool  # True to show paths and errors: these may name topics that are hidden from the viewer

    @property
    def differs(self) -> bool:
        return len(self.files) > 1

    @property
    def says_where(self) -> bool:
        """Return whether each row has to name its nodes. With a late node, a row would seem to apply to all of them."""
        return self.differs or bool(self.untold)


def policy_page(told: Sequence[NodePolicy], *, channel: bool, shows_files: bool) -> PolicyPage:
    """Return the nodes' policies for a topic or, with `channel`, for a channel and its topic."""
    telling = [it for it in told if not it.untold]
    of_topic = "topic", rows_of([(it.node, it.of_topic) for it in telling])
    of_channel = "channel", rows_of([(it.node, it.of_channel) for it in telling])
    parts = [("Effective policy", *of_channel), ("Effective policy of its topic", *of_topic)]
    return PolicyPage(
        parts=tuple(parts if channel else [("Effective policy", *of_topic)]) if telling else (),
        files=files_of(telling),
        untold=tuple(it for it in told if it.untold),
        shows_files=shows_files,
    )


def limit_in_words(channel: Channel, now: float) -> str:
    """Return the limit `max_in_flight` on the channel's nodes, and for how long it has been reached. "" is no limit.

    For example "3 on each node, up to 9 on these three; reached for 5m 0s on n1:4151, n3:4151".
    """
    if not channel.max_in_flight:
        return ""
    words = sum_in_words([row.max_in_flight for row in channel.nodes])
    full = [row for row in channel.nodes if row.in_flight_full_since and row.node not in channel.silent]
    if not full:
        return words
    since = min(row.in_flight_full_since or now for row in full)
    longest = numbers.duration(max(now - since, 0.0))
    where = f" on {', '.join(row.node for row in full)}" if len(full) < len(channel.nodes) else ""
    return f"{words}; reached for {longest}{where}"


def lines_of_channel(channel: Channel) -> tuple[CauseLine, ...]:
    return _ordered(_lines(channel, channel.name))


def lines_of_topic(topic: Topic) -> tuple[CauseLine, ...]:
    """Return the lines of the topic and of its channels."""
    return _ordered(
        [*_lines(topic, ""), *(line for channel in topic.channels for line in _lines(channel, channel.name))]
    )


def lines_of_cluster(snapshot: Snapshot, node: str = "") -> tuple[CauseLine, ...]:
    """Return the lines of all topics and channels; with `node`, only what happened on this node."""
    lines: list[CauseLine] = []
    for topic in snapshot.topics:
        lines += _lines(topic, "") if topic.policy_counts else ()
        for channel in topic.channels:
            lines += _lines(channel, channel.name) if channel.policy_counts else ()
    return _ordered(_on_one_node(lines, node) if node else lines)


def _on_one_node(lines: Iterable[CauseLine], node: str) -> Iterator[CauseLine]:
    for line in lines:
        for on in line.nodes:
            if on.node == node:
                yield replace(line, count=on.count, recent=on.recent or 0, nodes=(on,))


def _lines(of: Topic | Channel, channel: str) -> list[CauseLine]:
    recent = dict(of.policy_recent)
    return [
        CauseLine(
            topic=of.topic if isinstance(of, Channel) else of.name,
            channel=channel,
            cause=cause,
            state=next((state for ending, state in _STATES if cause.endswith(ending)), _KEPT),
            text=TEXTS.get(cause, ""),
            count=count,
            recent=recent.get(cause, 0),
            nodes=tuple(_on_nodes(of.nodes, cause, of.silent)),
        )
        for cause, count in of.policy_counts
        if count
    ]


def _on_nodes(rows: Iterable[TopicNode | ChannelNode], cause: str, silent: tuple[str, ...]) -> Iterable[OnNode]:
    for row in rows:
        if count := dict(row.policy_counts).get(cause):
            recent = None if row.node in silent else dict(row.policy_recent).get(cause, 0)
            yield OnNode(node=row.node, count=count, recent=recent)


def _ordered(lines: Iterable[CauseLine]) -> tuple[CauseLine, ...]:
    """Return lines that lose messages first, then ongoing before past ones, then by count."""
    return tuple(
        sorted(
            lines,
            key=lambda it: (_ORDER.index(it.state.kind), not it.recent, -it.count, it.topic, it.channel, it.cause),
        )
    )
