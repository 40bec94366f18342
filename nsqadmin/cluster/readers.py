"""Joins the nodes' reports about readers, which read a topic's logs without a channel, and checks retention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from nsqadmin.cluster.model import Reader, ReaderNode, Untold
from nsqadmin.cluster.sane import NotUnderstood

SILENT_AFTER: Final = 180.0  # seconds; a running reader reports at least once a minute
MOST: Final = 200  # readers that we accept from one answer; nsqd keeps 64 for a topic
_LONGEST_TEXT: Final = 2048
_SKEW: Final = 2.0  # seconds; we can't detect less, because nodes send their time in whole seconds
_NANOSECOND: Final = 1e-9
_MOST_NUMBER: Final = 1 << 64

Key = tuple[str, str]  # name and `into`


class TellsNoReaders(NotUnderstood):
    """The node's release doesn't know readers yet."""


@dataclass(frozen=True, slots=True)
class ReaderReport:
    """One node's report about one reader."""

    key: Key
    format: str
    host: str
    row: ReaderNode


@dataclass(frozen=True, slots=True)
class NodeReaders:
    """The readers of one node."""

    reports: tuple[ReaderReport, ...] | None = None  # its last answer; None: it has never given one
    reason: str = ""  # why it doesn't answer now; empty if it does


def read_readers(node: str, document: Any, *, as_of: float, skew: float | None) -> tuple[ReaderReport, ...]:
    """Parse the answer to `/topic/log?readers=true`. Raise NotUnderstood.

    `skew` is how many seconds the node's clock is ahead of ours: the times in the answer are by the node's clock.
    """
    if not isinstance(document, dict):
        raise NotUnderstood(f"expected an object, got {type(document).__name__}")
    if "readers" not in document:
        raise TellsNoReaders("it is older than this nsqadmin, and does not know who reads its logs")
    now = as_of + (skew if skew is not None and abs(skew) >= _SKEW else 0.0)
    try:
        return tuple(_report(node, raw, document, as_of, now) for raw in document["readers"][:MOST])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotUnderstood(f"cannot be read: {error!r}") from error


def _report(node: str, raw: Mapping[str, Any], log: Mapping[str, Any], as_of: float, now: float) -> ReaderReport:
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
    return ReaderReport((_text(raw["name"]), _text(raw["into"])), _text(raw["format"]), _text(raw["host"]), row)


def _age(nanoseconds: Any, now: float) -> float:
    return max(0.0, now - _checked(nanoseconds) * _NANOSECOND)


def _whole(value: Any) -> int:
    return int(_checked(value))


def _checked(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_NUMBER:
        raise ValueError(f"{value!r} is not a number from 0 to 2^64")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value[:_LONGEST_TEXT]


def joined(nodes: Mapping[str, NodeReaders]) -> tuple[tuple[Reader, ...], tuple[Untold, ...]]:
    """Join the reports by reader. For a node that doesn't answer now, use its last answer, with the reason."""
    found: dict[Key, list[ReaderReport]] = {}
    telling = []
    for node in sorted(nodes):
        known = nodes[node]
        if known.reports is not None:
            telling.append(node)
        for report in known.reports or ():
            row = replace(report.row, reason=known.reason) if known.reason else report.row
            found.setdefault(report.key, []).append(replace(report, row=row))
    readers = tuple(_reader(key, found[key], telling) for key in sorted(found))
    return readers, tuple(Untold(node=node, reason=nodes[node].reason) for node in sorted(nodes) if nodes[node].reason)


def _reader(key: Key, reports: Sequence[ReaderReport], telling: Sequence[str]) -> Reader:
    newest = max(reports, key=lambda report: report.row.heard)
    heard_by = {report.row.node for report in reports}
    return Reader(
        name=key[0],
        into=key[1],
        format=newest.format,
        hosts=tuple(sorted({report.host for report in reports if report.host})),
        nodes=tuple(report.row for report in reports),
        unheard=tuple(node for node in telling if node not in heard_by),
    )


# Retention


class ReaderDanger(StrEnum):
    """How likely messages are removed before a reader has committed them, in rising order."""

    NONE = "none"
    UNKNOWN = "unknown"
    UNKEPT = "unkept"  # without retention, messages go as soon as all channels have finished them
    AHEAD = "ahead"  # retention will overtake the reader at the present rates
    NEAR = "near"  # like AHEAD, and more than half of the time has passed
    LOST = "lost"  # it has happened


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether retention will overtake a reader on a node."""

    danger: ReaderDanger
    seconds: float | None = None  # until then at the earliest; messages that a channel still needs stay longer


_ORDER: Final = tuple(ReaderDanger)


def is_silent(row: ReaderNode) -> bool:
    return row.as_of - row.heard > SILENT_AFTER


def outlook(row: ReaderNode, *, has_channels: bool) -> Outlook:
    """Predict whether retention will overtake the reader.

    With no retention set, a topic without channels keeps everything.
    """
    if row.missed:
        return Outlook(ReaderDanger.LOST)
    if not row.behind:
        return Outlook(ReaderDanger.NONE)
    if not (row.retention_time or row.retention_bytes):
        return Outlook(ReaderDanger.UNKEPT if has_channels else ReaderDanger.NONE)
    if row.behind_time is None or (row.retention_bytes and row.behind_bytes is None):
        return Outlook(ReaderDanger.UNKNOWN)
    lag = row.behind_time
    growth = _growth(row, lag)
    limits = [kept for kept in (row.retention_time, _time_of_bytes(row, lag)) if kept]
    return worst([Outlook(ReaderDanger.NONE), *(_overtaken(lag, kept, growth) for kept in limits)])


def _time_of_bytes(row: ReaderNode, lag: float) -> float:
    """Return how old messages get under the byte limit, if they always came as fast as the uncommitted ones; 0: no
    limit.

    A reader with a lag of no bytes, or of messages published just now, is far from any limit: it counts as none.
    """
    if not row.retention_bytes or not row.behind_bytes:
        return 0.0
    return lag * row.retention_bytes / row.behind_bytes


def _growth(row: ReaderNode, lag: float) -> float:
    """Return the growth of the reader's lag in seconds per second: 1 if it has stopped, below 0 if it catches up."""
    if not row.rate or is_silent(row) or not lag:
        return 1.0
    return 1.0 - row.rate * lag / row.behind


def _overtaken(lag: float, kept: float, growth: float) -> Outlook:
    left = max(0.0, kept - lag)
    if growth <= 0 and left:
        return Outlook(ReaderDanger.NONE)
    seconds = left / growth if left else 0.0
    if seconds >= kept:  # the lag grows so slowly that this may be chance
        return Outlook(ReaderDanger.NONE)
    return Outlook(ReaderDanger.NEAR if left < kept / 2 else ReaderDanger.AHEAD, seconds)


def worst(outlooks: Iterable[Outlook]) -> Outlook:
    return max(outlooks, key=lambda it: (_ORDER.index(it.danger), -(it.seconds or 0.0)))
