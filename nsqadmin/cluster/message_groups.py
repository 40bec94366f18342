"""The groups of a channel's messages (`nsq-group`), read from the nodes' `/channel/groups` and added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from nsqadmin.cluster.sane import NotUnderstood, check_count, moment, text, whole

MOST_ROWS: Final = 100  # of each node
MANY: Final = 1_000  # held messages; with fewer, no group is worth a finding
_LONGEST_NAME: Final = 128  # characters; a name has as many bytes at most
_NANOSECONDS: Final = 1e9
_ODD: Final = (TypeError, ValueError, AttributeError, KeyError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageGroup:
    """A group on a node, or its sums over nodes."""

    name: str  # empty: messages without a group
    held: int = 0
    again: int = 0  # delivered before; they wait again, or are deferred
    in_flight: int = 0
    oldest_at: float | None = None  # when its oldest held message was published, by our clock; None: none, or unknown
    weight: int = 1

    @property
    def count(self) -> int:
        return self.held + self.again + self.in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroups:
    """One node's report about a channel's groups."""

    node: str
    held: int = 0
    groups: int = 0
    unsorted: int = 0  # held messages whose groups it has to read again
    ahead: int = 0  # new messages that it hasn't looked at
    max_held: int = 0
    largest: tuple[MessageGroup, ...] = ()
    has_rules: bool = True
    untold: str = ""  # why we don't have it


def read_groups(node: str, document: Any, *, skew: float = 0.0) -> NodeGroups:
    """Parse a node's answer. Raise NotUnderstood."""
    try:
        rows = document["largest"]
        check_count(len(rows), MOST_ROWS, "groups")
        return NodeGroups(
            node=node,
            held=_count(document["held"]),
            groups=_count(document["groups"]),
            unsorted=_count(document["unsorted"]),
            ahead=_count(document["ahead"]),
            max_held=_count(document["max_held"]),
            largest=tuple(_group(row, skew) for row in rows),
        )
    except NotUnderstood:
        raise
    except _ODD as error:
        raise NotUnderstood(f"its answer cannot be read: {error!r}") from error


def _group(row: Any, skew: float) -> MessageGroup:
    timestamp = row["oldest_timestamp"]
    oldest = moment(timestamp / _NANOSECONDS) if timestamp is not None else 0.0
    return MessageGroup(
        name=text(row["group"])[:_LONGEST_NAME],
        held=_count(row["held"]),
        again=_count(row["again"]),
        in_flight=_count(row["in_flight"]),
        oldest_at=oldest - skew if oldest else None,
        weight=_count(row["weight"]),
    )


def _count(value: Any) -> int:
    if (found := whole(value)) is None:
        raise ValueError(f"no count: {value!r}"[:100])
    return found


def merged_groups(told: Iterable[NodeGroups]) -> tuple[MessageGroup, ...]:
    """Return the groups with their sums over nodes, the largest first."""
    found: dict[str, MessageGroup] = {}
    for it in (group for node in told for group in node.largest):
        known = found.get(it.name)
        found[it.name] = it if known is None else _sum(known, it)
    return tuple(sorted(found.values(), key=lambda it: (-it.count, it.name)))


def _sum(one: MessageGroup, other: MessageGroup) -> MessageGroup:
    times = [at for at in (one.oldest_at, other.oldest_at) if at is not None]
    return replace(
        one,
        held=one.held + other.held,
        again=one.again + other.again,
        in_flight=one.in_flight + other.in_flight,
        oldest_at=min(times) if times else None,
    )


def is_cut(told: Sequence[NodeGroups]) -> bool:
    """Return whether a node may have more groups than it has listed, so that sums may be too low."""
    return any(len(it.largest) >= MOST_ROWS for it in told)
