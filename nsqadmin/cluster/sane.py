"""Checks of answers before they are merged: in the merged picture, one odd number would fail all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Json = Mapping[str, Any]

MOST_CLIENTS: Final = 100_000  # of one node's answer; also the limit on producers and their counts
LONGEST_NAME: Final = 4096  # characters; NSQ allows 64
_MOST: Final = 1 << 64  # every count is below this
_END_OF_TIME: Final = 253_402_300_800  # the year 10000, in seconds since 1970
_NANOSECONDS: Final = 1_000_000_000
_LEAST_SKEW: Final = 2.0  # seconds; we can't detect less, because nodes send their time in whole seconds


class NotUnderstood(ValueError):
    """Not an answer that a node gives."""


class TooMuch(NotUnderstood):
    """The answer has more topics, channels, clients or producers than we accept from one node."""


def check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise TooMuch(f"its answer has more than {most:,} {what}")


def text(value: Any) -> str:
    return str(value or "")[:LONGEST_NAME]


def check_numbers(*counts: float) -> None:
    """Raise TypeError or ValueError for an implausible number.

    Here such a number fails one node's answer; in the merged picture it would fail all nodes.
    """
    if not max(map(abs, counts)) < _MOST:
        raise ValueError("a number is too high")


def whole(value: Any) -> int | None:
    """Return the value if it is a plausible count, from 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None


def moment(value: Any) -> float:
    """Return the value as seconds since 1970, or 0 if it isn't a time."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _END_OF_TIME:
        return float(value)
    return 0.0


def by_our_clock(timestamp: Any, skew: float) -> float | None:
    """Convert a time in nanoseconds by a node's clock to seconds by ours; None if the node doesn't send it.

    `skew` is how many seconds the node's clock is ahead of ours. Raise TypeError or ValueError for an implausible time.
    """
    if timestamp is None:
        return None
    check_numbers(timestamp)  # dividing a number of 400 digits would raise OverflowError
    if not (seconds := moment(timestamp / _NANOSECONDS)):
        return None
    return seconds - (skew if abs(skew) >= _LEAST_SKEW else 0.0)
