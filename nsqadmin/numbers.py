"""Numbers for people to read. An unknown number is a dash, never a zero.

`web/static/app.js` has the same functions for live updates; `tests/browser` checks both against one table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "–"

_THOUSANDS: Final = ("k", "M", "G", "T", "P")
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400


def exact(value: float | None) -> str:
    """Write all digits of a whole number, in groups of three."""
    return UNKNOWN if value is None else f"{round(value):,}"


def count(value: float | None) -> str:
    """Write a whole number below 10,000 in full, and a larger one with three digits: 65.2k."""
    if value is None:
        return UNKNOWN
    if abs(value) < 10_000:
        return f"{round(value):,}"
    return _scaled(value)


def rate(value: float | None) -> str:
    """Write a rate per second."""
    if value is None:
        return UNKNOWN
    if abs(value) < 10:
        rounded = _tenths(value)
        return "<0.1/s" if rounded == "0" and value > 0 else f"{rounded}/s"
    return f"{count(value)}/s"


def per_minute(value: float | None) -> str:
    """Write a rate per minute, which reads better if it is small. `value` is per second."""
    if value is None:
        return UNKNOWN
    by_minute = value * _MINUTE
    return f"{_tenths(by_minute) if abs(by_minute) < 10 else count(by_minute)}/min"


def net(value: float | None) -> str:
    """Write a growth rate, with an arrow up or down."""
    if value is None:
        return UNKNOWN
    if abs(value) < 0.05:
        return "0/s"
    return f"{'↑' if value > 0 else '↓'} {rate(abs(value))}"


def percent(share: float | None) -> str:
    if share is None:
        return UNKNOWN
    value = share * 100
    return f"{_tenths(value)} %" if 0 < abs(value) < 1 else f"{round(value):,} %"


def size(octets: float | None) -> str:
    if octets is None:
        return UNKNOWN
    if abs(octets) < 1000:
        return f"{round(octets)} B"
    number = _scaled(octets)
    return f"{number[:-1]} {number[-1]}B"


def size_rate(octets: float | None) -> str:
    return UNKNOWN if octets is None else f"{size(octets)}/s"


def duration(seconds: float | None) -> str:
    """Write a duration in two units at most: 350 ms, 4.2 s, 48 s, 12m 48s, 3h 12m, 2d 4h."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return _below_a_second(seconds)
    if seconds < 9.95:
        return f"{_tenths(seconds)} s"
    whole = math.floor(seconds + 0.5)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two_units(whole, _MINUTE, "m", 1, "s")
    if whole < _DAY:
        return _two_units(whole, _HOUR, "h", _MINUTE, "m")
    return _two_units(whole, _DAY, "d", _HOUR, "h")


def ago(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return "just now" if seconds < 1 else f"{duration(math.floor(seconds))} ago"


def moment(at: float | None) -> str:
    """Write a time for machines and tooltips: RFC 3339, in UTC, to the second."""
    if not at:
        return UNKNOWN
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(at: float | None, now: float) -> str:
    """Write a time for people, with the day only if it is not today. It is UTC, which app.js turns into local time."""
    if not at:
        return UNKNOWN
    then, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%d %b %H:%M") + " UTC"


def several(number: int, one: str, many: str = "") -> str:
    """Write a count with its noun: `2 consumers`, `1 consumer`, `no consumers`."""
    if number == 0:
        return f"no {many or one + 's'}"
    return f"{exact(number)} {one if number == 1 else many or one + 's'}"


# By the names used in templates, charts and app.js.
FORMS: Final[Mapping[str, Callable[[float | None], str]]] = {
    "count": count,
    "exact": exact,
    "rate": rate,
    "net": net,
    "duration": duration,
    "size": size,
    "size_rate": size_rate,
    "percent": percent,
    "per_minute": per_minute,
}


def _scaled(value: float) -> str:
    unit = -1
    while abs(value) >= 999.5 and unit + 1 < len(_THOUSANDS):
        value /= 1000
        unit += 1
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}{_THOUSANDS[unit]}"


def _tenths(value: float) -> str:
    text = f"{value:.1f}"
    text = text.removesuffix(".0")
    return "0" if text == "-0" else text


def _below_a_second(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    if seconds < 0.001:
        return f"{round(seconds * 1_000_000)} µs"
    return f"{round(seconds * 1000)} ms"


def _two_units(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    whole, rest = divmod(seconds, large)
    rest //= small
    return f"{whole}{large_name} {rest}{small_name}" if rest else f"{whole}{large_name}"
