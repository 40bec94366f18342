"""Who reads a topic's logs without a channel: what nodes say of readers, joined, and whether retention will overtake them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from nsqadmin.cluster.model import Reader, ReaderNode, Untold
from nsqadmin.cluster.node_stats import NotUnderstood

SILENT_AFTER: Final = 180.0  # seconds; a reader that runs reports at least each minute
MOST: Final = 200  # readers of one answer that are shown; nsqd keeps 64 of a topic
_LONGEST_TEXT: Final = 2048
_SKEW: Final = 2.0  # seconds; nodes tell their time in whole ones
_NANOSECOND: Final = 1e-9
_MOST_NUMBER: Final = 1 << 64

Key = tuple[str, str]  # name and `into`


class TellsNoReaders(NotUnderstood):
    """The node is older than readers are."""


@dataclass(frozen=True, slots=True)
class Said:
    """One reader, as one node says it."""

    key: Key
    format: str
    host: str
    row: ReaderNode


@dataclass(frozen=True, slots=True)
class NodeReaders:
    """What is known of one node: what it said last, and if it does not say it now, why."""

    said: tuple[Said, ...] | None = None
    reason: str = ""


def read_readers(node: str, document: Any, *, as_of: float, skew: float | None) -> tuple[Said, ...]:
    """Read the answer to `/topic/log?readers=true`. Raises NotUnderstood.

    `skew` is by how much the node's clock is ahead; ages are by the node's clock.
    """
    if not isinstance(document, dict):
        raise NotUnderstood(f"expected an object, got {type(document).__name__}")
    if "readers" not in document:
        raise TellsNoReaders("it is older than this nsqadmin, and does not know who reads its logs")
    now = as_of + (skew if skew is not None and abs(skew) >= _SKEW else 0.0)
    try:
        return tuple(_said(node, it, document, as_of, now) for it in document["readers"][:MOST])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotUnderstood(f"cannot be read: {error!r}") from error


def _said(node: str, raw: Mapping[str, Any], log: Mapping[str, Any], as_of: float, now: float) -> Said:
    since = raw.get("behind_since")
    rate = raw.get("rate")
    row = ReaderNode(
        node=node,
        as_of=as_of,
        heard=as_of - _age(raw["heard"], now),
        committed=as_of - _age(raw["committed"], now),
        behind=_whole(raw["behind"]),
        behind_bytes=_whole(raw["behind_bytes"]) if raw.get("behind_bytes") is not None else None,
        behind_time=_age(since, now) if since is not None else None,
        missed=_whole(raw["missed"]),
        rate=float(_checked(rate)) if rate is not None else None,
        is_new_log=raw["log"] != log["log"],
        retention_time=_whole(log["retention_time"]) * _NANOSECOND,
        retention_bytes=_whole(log["retention_bytes"]),
    )
    return Said((_text(raw["name"]), _text(raw["into"])), _text(raw["format"]), _text(raw["host"]), row)


def _age(nanoseconds: Any, now: float) -> float:
    return max(0.0, now - _checked(nanoseconds) * _NANOSECOND)


def _whole(value: Any) -> int:
    return int(_checked(value))


def _checked(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_NUMBER:
        raise ValueError(f"{value!r} is not such a number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value[:_LONGEST_TEXT]


def joined(nodes: Mapping[str, NodeReaders]) -> tuple[tuple[Reader, ...], tuple[Untold, ...]]:
    """Make one picture of what nodes say. What a node said last stands for it while it says nothing, and is marked so."""
    found: dict[Key, list[Said]] = {}
    telling = []
    for node in sorted(nodes):
        known = nodes[node]
        if known.said is not None:
            telling.append(node)
        for said in known.said or ():
            row = replace(said.row, reason=known.reason) if known.reason else said.row
            found.setdefault(said.key, []).append(replace(said, row=row))
    readers = tuple(_reader(key, found[key], telling) for key in sorted(found))
    return readers, tuple(Untold(node=it, reason=nodes[it].reason) for it in sorted(nodes) if nodes[it].reason)


def _reader(key: Key, said: Sequence[Said], telling: Sequence[str]) -> Reader:
    newest = max(said, key=lambda it: it.row.heard)
    heard_by = {it.row.node for it in said}
    return Reader(
        name=key[0],
        into=key[1],
        format=newest.format,
        hosts=tuple(sorted({it.host for it in said if it.host})),
        nodes=tuple(it.row for it in said),
        unheard=tuple(node for node in telling if node not in heard_by),
    )


# Retention


class Danger(StrEnum):
    NONE = "none"
    UNKNOWN = "unknown"
    UNKEPT = "unkept"  # nothing keeps what it has not committed, once channels have finished it
    AHEAD = "ahead"  # retention overtakes it if things go on like this
    NEAR = "near"  # the same, and more than half of the time is over
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether retention overtakes a reader on a node, and when at the earliest; what channels still owe stays for longer."""

    danger: Danger
    seconds: float | None = None


_ORDER: Final = tuple(Danger)


def is_silent(row: ReaderNode) -> bool:
    return row.as_of - row.heard > SILENT_AFTER


def outlook(row: ReaderNode, *, has_channels: bool) -> Outlook:
    """A topic without channels keeps everything, unless retention is set."""
    if row.missed:
        return Outlook(Danger.LOST)
    if not row.behind:
        return Outlook(Danger.NONE)
    if not (row.retention_time or row.retention_bytes):
        return Outlook(Danger.UNKEPT if has_channels else Danger.NONE)
    if row.behind_time is None or (row.retention_bytes and row.behind_bytes is None):
        return Outlook(Danger.UNKNOWN)
    growth = _growth(row, row.behind_time)
    shares = [
        (row.behind_time, row.retention_time),
        # So long ago was published what may still be kept, if bytes came as fast as those that it is behind.
        (row.behind_time, _time_of_bytes(row, row.behind_time)),
    ]
    found = [_overtaken(lag, kept, growth) for lag, kept in shares if kept]
    return worst(found)


def _time_of_bytes(row: ReaderNode, lag: float) -> float:
    if not row.retention_bytes or not row.behind_bytes:
        return 0.0
    return lag * row.retention_bytes / row.behind_bytes


def _growth(row: ReaderNode, lag: float) -> float:
    """By how many seconds it falls behind each second: 1 when it stands, below 0 when it catches up."""
    if not row.rate or is_silent(row) or not lag:
        return 1.0
    return 1.0 - row.rate * lag / row.behind


def _overtaken(lag: float, kept: float, growth: float) -> Outlook:
    left = max(0.0, kept - lag)
    if growth <= 0 and left:
        return Outlook(Danger.NONE)
    seconds = left / growth if left else 0.0
    if seconds >= kept:  # it falls behind by so little that this may as well be chance
        return Outlook(Danger.NONE)
    return Outlook(Danger.NEAR if left < kept / 2 else Danger.AHEAD, seconds)


def worst(outlooks: Iterable[Outlook]) -> Outlook:
    return max(outlooks, key=lambda it: (_ORDER.index(it.danger), -(it.seconds or 0.0)))
