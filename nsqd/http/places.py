"""Parses a starting place in a topic's log: `from=earliest|latest|<sequence>|<RFC 3339 time>`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

_is_sequence: Final = re.compile(r"[0-9]{1,19}", re.ASCII).fullmatch
# An unescaped `+` in a query arrives as a space.
_time: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([-+ ])(\d\d):([0-5]\d))", re.ASCII
).fullmatch
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class HistoryEdge(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message published at this time or later."""

    timestamp: int  # nanoseconds


@dataclass(frozen=True, slots=True)
class FoundSequence:
    """The sequence found for a time. It is clamped to the log's range; a client's own sequence must be within it."""

    sequence: int


HistoryPlace = HistoryEdge | AtTime | int
Pinned = HistoryEdge | FoundSequence | int


def parse_place(text: str) -> HistoryPlace:
    """Parse the value of `from`. Raises ValueError."""
    if _is_sequence(text):
        return int(text)
    match = _time(text)
    return HistoryEdge(text) if match is None else AtTime(_timestamp(*match.groups(default="")))


def _timestamp(date: str, time: str, fraction: str, sign: str, hours: str, minutes: str) -> int:
    seconds = (datetime.fromisoformat(f"{date}T{time}+00:00") - _EPOCH) // timedelta(seconds=1)
    offset = 60 * (60 * int(hours) + int(minutes)) if sign else 0
    seconds -= -offset if sign == "-" else offset
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)
