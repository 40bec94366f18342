"""Buried messages, one of the kinds of lists: requests to nodes, and parsing and merging their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.messages.lists import (
    NANOSECOND,
    ListedMessage,
    ListKind,
    Look,
    NodeCount,
    Sight,
    Summary,
    text_in,
    whole_in,
)

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode
    from nsqadmin.messages.model import Message

_HIGHEST: Final = (1 << 63) - 1
_MOST_REASONS: Final = 1000  # of one node; nsqd sends at most this many
_DIGITS: Final = 19  # of a sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A kick or discard that a node is working on, or its last finished one."""

    verb: str
    done: int
    limit: int  # 0: none
    rate: float  # messages a second; 0: as fast as the node can
    reason: str
    who: str
    started_at: float
    ended_at: float | None = None

    @property
    def left(self) -> int | None:
        """The number of messages still to handle, at most; None: unknown."""
        return max(0, self.limit - self.done) if self.limit else None

    @property
    def seconds_left(self) -> float | None:
        return self.left / self.rate if self.left is not None and self.rate else None

    def seen(self, sight: Sight) -> Operation:
        return replace(self, reason=sight.shown_part(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReason:
    reason: str  # the text, or the part that the user may see
    client: str
    count: int
    name: str = ""  # selects the messages with this reason, also for users who can't see it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary(NodeCount):
    """The buried messages of the channel on one node."""

    reasons: tuple[NodeReason, ...] = ()
    others: int = 0  # messages with reasons that aren't listed
    job: Operation | None = None  # running
    ended: Operation | None = None  # the last finished one
    kick: int = 0  # number of the last kick, while it can be undone; 0: there is none
    room: int | None = None  # how many messages a kick can return without force; None: any number

    @property
    def listed_reasons(self) -> tuple[str, ...]:
        return tuple(it.reason for it in self.reasons)

    def seen(self, sight: Sight) -> NodeSummary:
        reasons = tuple(replace(it, reason=sight.shown(it.reason), name=sight.name(it.reason)) for it in self.reasons)
        job, ended = self.job and self.job.seen(sight), self.ended and self.ended.seen(sight)
        return replace(self, reasons=reasons, job=job, ended=ended)

    def having(self, reason: str) -> int:
        """Return how many messages have a reason with this text, at most."""
        return self.others + sum(it.count for it in self.reasons if reason in it.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason on all nodes that answer."""

    text: str  # the part that the user may see
    name: str  # its name in addresses
    count: int
    nodes: tuple[str, ...]
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuriedSummary(Summary[NodeSummary]):
    """The buried messages of a channel, on all nodes."""

    @property
    def others(self) -> int:
        return sum(it.others for it in self.answered)

    @property
    def kicks(self) -> tuple[str, ...]:
        """The kicks that can be undone, each as NUMBER@NODE."""
        return tuple(f"{it.kick}@{it.node}" for it in self.answered if it.kick)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons on all nodes that answer, most frequent first."""
        counts: dict[tuple[str, str], int] = {}
        nodes: dict[tuple[str, str], dict[str, None]] = {}
        clients: dict[tuple[str, str], dict[str, None]] = {}
        for summary in self.answered:
            for it in summary.reasons:
                one = it.reason, it.name  # different reasons can have equal masked texts
                counts[one] = counts.get(one, 0) + it.count
                nodes.setdefault(one, {})[summary.node] = None
                clients.setdefault(one, {})[it.client] = None
        return tuple(
            Reason(
                text=one[0],
                name=one[1],
                count=count,
                nodes=tuple(nodes[one]),
                clients=tuple(it for it in clients[one] if it),
            )
            for one, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        )

    @property
    def under_way(self) -> tuple[tuple[str, Operation], ...]:
        return tuple((it.node, it.job) for it in self.answered if it.job is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burial(ListedMessage):
    """One buried message."""

    buried_at: float
    reason: str
    client: str

    @property
    def pick(self) -> str:
        """Its name in a form. An id is valid forever, a sequence only as long as the topic exists."""
        return f"{self.id}@{self.node}"

    @property
    def place(self) -> str:
        return str(self.sequence)

    @property
    def at(self) -> float:
        """Publish time, if known."""
        return self.message.timestamp if self.message is not None else self.buried_at

    def seen(self, sight: Sight) -> Burial:
        return replace(self, reason=sight.shown(self.reason))


class Buried(ListKind[NodeSummary, Burial]):
    """The kind of messages that a channel has buried."""

    path = "/channel/buried"
    also = ("/channel/jobs",)
    # Answers of nodes without buried messages: other nsqds than ours, and nodes without the channel.
    nothing = frozenset(("NOT_FOUND", "TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND", "EPHEMERAL_TOPIC", "EPHEMERAL_CHANNEL"))

    def last_known(self, row: ChannelNode, error: str) -> NodeSummary:
        return NodeSummary(node=row.node, count=row.buried_count, error=error)

    def count_in(self, node: str, answers: Sequence[Any]) -> NodeSummary:
        raw, jobs = answers
        listed = raw["reasons"]
        if len(listed) > _MOST_REASONS:
            raise ValueError(f"more than {_MOST_REASONS:,} reasons")
        reasons = tuple(
            NodeReason(reason=text_in(it["reason"]), client=text_in(it["client"]), count=whole_in(it["count"]))
            for it in listed
        )
        known = [job for it in jobs["jobs"][:2] if (job := job_in(it)) is not None]
        return NodeSummary(
            node=node,
            count=whole_in(raw["count"]),
            reasons=reasons,
            others=whole_in(raw["others"]),
            job=job_in(raw["job"]),
            ended=next((job for job in known if job.ended_at is not None), None),
            kick=kick_in(raw),
            room=None if raw.get("room") is None else whole_in(raw["room"]),
        )

    def arguments(self, look: Look) -> dict[str, str]:
        return {"reason": look.reason}

    def line_in(
        self, node: NodeSummary, line: Mapping[str, Any], message: Message | None, *, is_wanted: bool
    ) -> Burial:
        return Burial(
            node=node.node,
            id=text_in(line["id"]),
            sequence=whole_in(line["sequence"]),
            attempts=whole_in(line["attempts"]),
            buried_at=whole_in(line["buried_at"]) * NANOSECOND,
            reason=text_in(line["reason"]),
            client=text_in(line["client"]),
            message=message,
            unread=text_in(line.get("unread", "")),
            is_wanted=is_wanted,
        )

    def place_before(self, place: str) -> str:
        if not (place.isascii() and place.isdecimal() and len(place) <= _DIGITS):
            raise ValueError(f"{place[:40]!r} is no sequence")
        return str(int(place) - 1) if int(place) else ""


BURIED: Final = Buried()


def kick_in(raw: Any) -> int:
    """Parse the number of a kick that can be undone; 0: there is none. Raise KeyError, TypeError, ValueError."""
    return whole_in(raw.get("kick") or 0)


def job_in(raw: Any) -> Operation | None:
    """Parse a job. Raise KeyError, TypeError, ValueError."""
    if raw is None:
        return None
    rate = raw["rate"]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < _HIGHEST:
        raise TypeError(f"{type(rate).__name__} is no rate")
    return Operation(
        verb=text_in(raw["verb"]),
        done=whole_in(raw["done"]),
        limit=whole_in(raw["limit"]),
        rate=float(rate),
        reason=text_in(raw["reason"]),
        who=text_in(raw["who"]),
        started_at=whole_in(raw["started_at"]) * NANOSECOND,
        ended_at=None if raw["ended_at"] is None else whole_in(raw["ended_at"]) * NANOSECOND,
    )
