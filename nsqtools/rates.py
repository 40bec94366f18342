"""CORE of nsq_stat: the rates between two polls, and their lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from nsqcommon.durations import SECOND, format_duration
from nsqcommon.limits_of_nodes import sum_in_words
from nsqtools.json_fields import list_in, number_in

HEADER: Final = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
)
ROWS_PER_HEADER: Final = 25


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a channel on one nsqd, or their sums."""

    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0
    max_in_flight: int = 0  # from the policy file; 0: no limit
    held_count: int = 0  # the part of the depth that waits because of its groups

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, name) + getattr(other, name) for name in _NAMES))


_NAMES: Final = tuple(Counters.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class NodeCounters(Counters):
    """The counters of a channel on one nsqd, with what can't be added up."""

    in_flight_full_since: int = 0  # nanoseconds since 1970 by the node's clock; 0: max_in_flight isn't reached


_OF_NODE: Final = tuple(NodeCounters.__dataclass_fields__)


def counters_in(stats: Any, topic: str, channel: str) -> NodeCounters | None:
    """Return the channel's counters from an answer of `/stats`; None if the channel isn't there.

    Raises KeyError or TypeError for any other answer.
    """
    for found in list_in(stats, "topics"):
        if found["topic_name"] == topic:
            for it in list_in(found, "channels"):
                if it["channel_name"] == channel:
                    return NodeCounters(*(number_in(it, name) if name in it else 0 for name in _OF_NODE))
    return None


@dataclass(frozen=True, slots=True)
class Poll:
    """The counters of all nsqd at one time."""

    time: float  # seconds on a monotonic clock
    nodes: Mapping[str, NodeCounters]
    missing: tuple[str, ...] = ()  # nsqd without an answer
    timestamp: int = 0  # wall clock, nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRow:
    """One line of the table. Rates are per second."""

    ingress: int
    egress: int
    total: Counters
    nodes: int
    missing: tuple[str, ...]
    limits: tuple[int, ...]  # max_in_flight of each nsqd
    in_flight_full_seconds: int | None  # the longest time for which an nsqd's limit has been reached; None: it isn't

    def line(self) -> str:
        """Return the row as text."""
        it = self.total
        text = (
            f"{self.ingress:7d} {self.egress:7d} | {it.depth:7d} {it.depth - it.backend_depth:7d} "
            f"{it.backend_depth:7d} {it.in_flight_count:5d} {it.deferred_count:5d} | "
            f"{it.requeue_count:7d} {it.timeout_count:7d} {it.message_count:12d} {it.client_count:7d}"
        )
        if it.max_in_flight:
            text += f"  (max_in_flight {sum_in_words(self.limits)}{self._reached()})"
        if it.held_count:
            text += f"  (held {it.held_count})"
        if self.missing:
            text += f"  (without {', '.join(self.missing)})"
        return text + "\n"

    def _reached(self) -> str:
        seconds = self.in_flight_full_seconds
        return "" if seconds is None else f", reached for {format_duration(seconds * SECOND)}"

    def document(self) -> dict[str, Any]:
        """Return the row as an object for JSON."""
        return {
            "ingress": self.ingress,
            "egress": self.egress,
            "memory_depth": self.total.depth - self.total.backend_depth,
            **asdict(self.total),
            "in_flight_full_seconds": self.in_flight_full_seconds,
            "nodes": self.nodes,
            "missing": list(self.missing),
        }


def row_between(before: Poll, now: Poll) -> RateRow:
    """Return the row between two polls.

    Rates include only nsqd that answered both times, because one that comes or goes would add or remove its whole
    count.
    """
    both = before.nodes.keys() & now.nodes.keys()
    then, later = _sum(before, both), _sum(now, both)
    arrived = later.message_count - then.message_count
    left = arrived - (later.depth - then.depth)
    seconds = now.time - before.time
    full = [max(0, now.timestamp - since) for it in now.nodes.values() if (since := it.in_flight_full_since)]
    return RateRow(
        ingress=int(arrived / seconds),
        egress=int(left / seconds),
        total=_sum(now, now.nodes.keys()),
        nodes=len(now.nodes),
        missing=now.missing,
        limits=tuple(it.max_in_flight for it in now.nodes.values()),
        in_flight_full_seconds=max(full) // SECOND if full else None,
    )


def _sum(poll: Poll, names: Any) -> Counters:
    return sum((poll.nodes[name] for name in names), Counters())
