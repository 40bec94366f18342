"""Durations in whole nanoseconds, as in NSQ's HTTP API, and Go's notation for them (`1m30s500ms`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Final

Nanoseconds = int

MICROSECOND: Final[Nanoseconds] = 1_000
MILLISECOND: Final[Nanoseconds] = 1_000 * MICROSECOND
SECOND: Final[Nanoseconds] = 1_000 * MILLISECOND
MINUTE: Final[Nanoseconds] = 60 * SECOND
HOUR: Final[Nanoseconds] = 60 * MINUTE
DAY: Final[Nanoseconds] = 24 * HOUR

DURATION_EXAMPLES: Final = "500ms, 90s, 1h30m or 7d"

_INT64: Final = range(-(2**63), 2**63)


def seconds(duration: Nanoseconds) -> float:
    return duration / SECOND


def whole_milliseconds(delay: float) -> int:
    """Return a delay in seconds as milliseconds, rounded up so that it never ends early.

    We ignore digits beyond a microsecond, because they are float errors: for example, 2.007 * 1000 is a little more
    than 2007.
    """
    return ceil(round(delay * 1000, 3))


_DURATION_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_UNITS: Final[Mapping[str, Nanoseconds]] = {
    "ns": 1,
    "us": MICROSECOND,
    "µs": MICROSECOND,
    "μs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}


def parse_duration(text: str) -> Nanoseconds:
    """Parse Go's notation: `300ms`, `1.5h`, `1m30s500ms`, and `0`, the only number that needs no unit.

    Raises ValueError for anything else.
    """
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    total, at = 0, 0
    while at < len(rest) or at == 0:
        part = _DURATION_PART.match(rest, at)
        if part is None or not (part[1] or part[2]):
            raise ValueError("parse error")
        unit, fraction = _UNITS[part[3]], part[2] or ""
        total += int(part[1] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        at = part.end()
    if total not in _INT64:
        raise ValueError("parse error")
    return -total if text.startswith("-") else total


def parse_long_duration(text: str) -> Nanoseconds:
    """Parse a duration that may begin with days: `7d`, `1d12h`, `90m`. Raises ValueError with examples."""
    days, is_long, rest = text.rpartition("d")
    try:
        if not is_long:
            return parse_duration(text)
        if not days.isascii() or not days.isdigit() or rest[:1] in ("+", "-"):
            raise ValueError
        duration = int(days) * DAY + (parse_duration(rest) if rest else 0)
        if duration not in _INT64:
            raise ValueError
    except ValueError:
        raise ValueError(f"expected a duration such as {DURATION_EXAMPLES}") from None
    return duration


def format_duration(duration: Nanoseconds) -> str:
    """Format a duration as Go does: `1h0m0s`, `1m0s`, `2.5s`, `250ms`, `0s`."""
    if duration < 0:
        return "-" + format_duration(-duration)
    if duration < SECOND:
        for word, unit in (("ms", MILLISECOND), ("µs", MICROSECOND), ("ns", 1)):
            if duration >= unit:
                return _decimal(duration, unit) + word
        return "0s"
    minutes, rest = divmod(duration, MINUTE)
    hours, minutes = divmod(minutes, 60)
    text = _decimal(rest, SECOND) + "s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    digits = f"{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else str(whole)
