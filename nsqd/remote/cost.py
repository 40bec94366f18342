"""The most that `--remote` costs at a store that charges for requests, as lines for people."""

from __future__ import annotations

from typing import Final

from nsqcommon.durations import DAY, SECOND, Nanoseconds, format_duration

HEARTBEAT: Final[Nanoseconds] = 10 * SECOND  # an idle node asks once in this time whether it still owns its log
# In dollars for a million requests, at S3 Standard. Google's and Azure's prices are of the same size.
_PUT: Final = 5.0
_GET: Final = 0.40
_MONTH: Final[Nanoseconds] = 30 * DAY


def monthly_costs(interval: Nanoseconds, delay: Nanoseconds) -> list[str]:
    """Return a line for each state of a node. `interval` and `delay` come from its options."""
    return [
        f"idle: {_requests(HEARTBEAT, 'GET', _GET)}",
        f"while there is something to store, a slot each {format_duration(delay)}: {_requests(delay, 'PUT', _PUT)}",
        f"while publishers wait for it, a slot each {format_duration(interval)}: {_requests(interval, 'PUT', _PUT)}",
    ]


def _requests(pause: Nanoseconds, verb: str, price: float) -> str:
    count = _MONTH // pause
    dollars = count * price / 1_000_000
    return f"at most {count:,} {verb} a month, {dollars:.2f} $ at S3 Standard"
