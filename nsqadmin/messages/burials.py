"""What a channel has buried on its nodes: records, how a node's answers are read, and how they are added up.

A node that does not answer is named, with what it had when it was last seen. It is never counted as one with nothing.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nsqadmin.messages.model import Message

_HIGHEST: Final = (1 << 63) - 1
_LONGEST: Final = 1024  # characters of a reason or a name; nsqd allows fewer
_MOST_REASONS: Final = 1000  # of one node, as nsqd sends
_NANOSECOND: Final = 1e-9
_place: Final = re.compile(r"([0-9]{1,19})@(\S+)", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A kick or discard that a node works on by itself, or the last one that has ended."""

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
        """How many messages it has still to take, at most; None: not known."""
        return max(0, self.limit - self.done) if self.limit else None

    @property
    def seconds_left(self) -> float | None:
        return self.left / self.rate if self.left is not None and self.rate else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Which buried messages of a channel to show: the next `limit` of them, by node after this sequence."""

    after: Mapping[str, int]
    limit: int
    reason: str = ""  # only messages with this text in their reason
    node: str = ""  # only messages on this node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReason:
    reason: str
    client: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSummary:
    """What one node has buried in the channel."""

    node: str
    count: int = 0
    reasons: tuple[NodeReason, ...] = ()
    others: int = 0  # messages with reasons that are not listed
    job: Job | None = None  # under way
    ended: Job | None = None  # the last one that has ended
    kick: int = 0  # the number of the last kick, while it can be taken back; 0: there is none
    error: str = ""  # why it is not known now; then `count` is what it had when it was last seen

    def having(self, reason: str) -> int:
        """Return how many messages have a reason that contains this text, at most."""
        return self.others + sum(it.count for it in self.reasons if reason in it.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason on all nodes that answer."""

    text: str
    count: int
    nodes: tuple[str, ...]
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What all nodes of a channel have buried."""

    nodes: tuple[NodeSummary, ...]

    @property
    def answered(self) -> tuple[NodeSummary, ...]:
        return tuple(it for it in self.nodes if not it.error)

    @property
    def missing(self) -> tuple[NodeSummary, ...]:
        """The nodes that have not told what they have."""
        return tuple(it for it in self.nodes if it.error)

    @property
    def count(self) -> int:
        """How many messages are buried on the nodes that answer."""
        return sum(it.count for it in self.answered)

    @property
    def others(self) -> int:
        return sum(it.others for it in self.answered)

    @property
    def kicks(self) -> tuple[str, ...]:
        """The kicks that can be taken back, each as NUMBER@NODE."""
        return tuple(f"{it.kick}@{it.node}" for it in self.answered if it.kick)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons of all nodes that answer, the most frequent first."""
        counts: dict[str, int] = {}
        nodes: dict[str, dict[str, None]] = {}
        clients: dict[str, dict[str, None]] = {}
        for summary in self.answered:
            for it in summary.reasons:
                counts[it.reason] = counts.get(it.reason, 0) + it.count
                nodes.setdefault(it.reason, {})[summary.node] = None
                clients.setdefault(it.reason, {})[it.client] = None
        return tuple(
            Reason(text=text, count=count, nodes=tuple(nodes[text]), clients=tuple(it for it in clients[text] if it))
            for text, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        )

    @property
    def under_way(self) -> tuple[tuple[str, Job], ...]:
        return tuple((it.node, it.job) for it in self.answered if it.job is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burial:
    """One buried message. Without `message`, `unread` says why its body cannot be had."""

    node: str
    id: str
    sequence: int
    attempts: int
    buried_at: float
    reason: str
    client: str
    message: Message | None = None
    unread: str = ""

    @property
    def pick(self) -> str:
        """Its name in a form. An id belongs to one message for ever, a sequence only as long as the topic lives."""
        return f"{self.id}@{self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuriedPage:
    burials: tuple[Burial, ...]  # by when they were published, the oldest first
    after: str = ""  # where the next page begins; empty: nothing is left
    missing: tuple[tuple[str, str], ...] = ()  # nodes that could not be read, or not to the end, and why


def merged(
    lists: Mapping[str, Sequence[Burial]], after: Mapping[str, int], limit: int, *, cut: Container[str] = ()
) -> tuple[tuple[Burial, ...], str]:
    """Return the first `limit` messages of all nodes, and where to go on.

    Each list is a node's next messages after a sequence, in its order; one that is shorter than `limit` is at its end,
    unless its node is among `cut`.
    """
    everything = list(heapq.merge(*lists.values(), key=_published))
    shown = everything[:limit]
    places = {**after, **{it.node: it.sequence for it in shown}}
    taken = {node: sum(it.node == node for it in shown) for node in lists}
    goes_on = any(
        len(found) > taken[node] or len(found) >= limit or (found and node in cut) for node, found in lists.items()
    )
    return tuple(shown), (written(places) if goes_on else "")


def _published(burial: Burial) -> tuple[float, str]:
    return (burial.message.timestamp if burial.message is not None else burial.buried_at), burial.node


def written(places: Mapping[str, int]) -> str:
    """Write after which sequence each node's list goes on."""
    return " ".join(f"{sequence}@{node}" for node, sequence in places.items())


def parse_places(text: str) -> dict[str, int]:
    """Read what `written` has written. Raise ValueError."""
    found = [_place(word) for word in text.split()]
    if not all(found):
        raise ValueError(f"{text[:100]!r} is no place in these lists")
    return {it[2]: min(int(it[1]), _HIGHEST) for it in found if it is not None}


# A node's answers. A value that is missing or of the wrong type fails this one node only.


def summary_in(node: str, raw: Any, jobs: Any) -> NodeSummary:
    """Read the answers to /channel/buried?summary=true and to /channel/jobs. Raise KeyError, TypeError, ValueError."""
    listed = raw["reasons"]
    if len(listed) > _MOST_REASONS:
        raise ValueError(f"more than {_MOST_REASONS:,} reasons")
    reasons = tuple(
        NodeReason(reason=_text(it["reason"]), client=_text(it["client"]), count=_whole(it["count"])) for it in listed
    )
    known = [job for it in jobs["jobs"][:2] if (job := job_in(it)) is not None]
    return NodeSummary(
        node=node,
        count=_whole(raw["count"]),
        reasons=reasons,
        others=_whole(raw["others"]),
        job=job_in(raw["job"]),
        ended=next((job for job in known if job.ended_at is not None), None),
        kick=kick_in(raw),
    )


def kick_in(raw: Any) -> int:
    """Read the number of a kick that can be taken back; 0: the node knows none. Raise KeyError, TypeError, ValueError."""
    return _whole(raw.get("kick") or 0)


def job_in(raw: Any) -> Job | None:
    """Read a job. Raise KeyError, TypeError, ValueError."""
    if raw is None:
        return None
    rate = raw["rate"]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < _HIGHEST:
        raise TypeError(f"{rate!r:.50} is no rate")
    return Job(
        verb=_text(raw["verb"]),
        done=_whole(raw["done"]),
        limit=_whole(raw["limit"]),
        rate=float(rate),
        reason=_text(raw["reason"]),
        who=_text(raw["who"]),
        started_at=_whole(raw["started_at"]) * _NANOSECOND,
        ended_at=None if raw["ended_at"] is None else _whole(raw["ended_at"]) * _NANOSECOND,
    )


def burial_in(node: str, line: Mapping[str, Any], message: Message | None) -> Burial:
    """Read a line of /channel/buried. Raise KeyError, TypeError, ValueError."""
    return Burial(
        node=node,
        id=_text(line["id"]),
        sequence=_whole(line["sequence"]),
        attempts=_whole(line["attempts"]),
        buried_at=_whole(line["buried_at"]) * _NANOSECOND,
        reason=_text(line["reason"]),
        client=_text(line["client"]),
        message=message,
        unread=_text(line.get("unread", "")),
    )


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _HIGHEST:
        raise TypeError(f"{value!r:.50} is not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is no text")
    return value[:_LONGEST]
