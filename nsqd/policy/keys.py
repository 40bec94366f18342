"""The table of keys in the policy file: their valid values, and whether they apply to topics or channels.

Some keys, such as limits and expiry, exist for both. Without `channel`, an entry sets them for topics only, and with
`channel = "*"` for all of their channels. For example, limiting a topic to 20 GB and limiting each of its channels to
20 GB are separate decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from nsqcommon.durations import MILLISECOND, parse_long_duration
from nsqcommon.sizes import parse_size
from nsqcommon.wire.groups import MOST_BYTES, valid_group
from nsqd.ack_option import Ack
from nsqd.broker.rules import Overflow

_MOST_ATTEMPTS: Final = 65_535  # the wire format has two bytes for attempts
_MOST_IN_FLIGHT: Final = 1_000_000_000  # more than a node has memory for; /stats shows the number
_HEAVIEST: Final = 1_000
_RATE_UNITS: Final = {"s": 1, "m": 60, "h": 3600}


class About(Enum):
    """The scope of a key, depending on whether its entry has a `channel`."""

    CHANNELS = auto()  # the matching channels; without `channel`, all channels of the topics
    TOPICS = auto()  # the topics; invalid with `channel`
    EITHER = auto()  # the matching channels; without `channel`, the topics but not their channels


@dataclass(frozen=True, slots=True)
class Key:
    about: About
    parse: Callable[[Any], Any]  # raises ValueError with the expected values
    needs: tuple[str, ...] = ()  # the key has no effect without one of these
    may_be_dry: bool = True  # can be in an entry with `dry_run`


def _whole(most: int | None = None) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
            raise ValueError(f"must be a number {'of 1 or more' if most is None else f'from 1 to {most}'}")
        return value

    return parse


def _share(*, with_zero: bool) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError("must be a number from 0 to 1")
        if not value and not with_zero:
            raise ValueError("must be more than 0")
        return float(value)

    return parse


def _duration(value: Any) -> int:
    try:
        if not isinstance(value, str) or (duration := parse_long_duration(value)) < 0:
            raise ValueError
    except ValueError:
        raise ValueError('must be a duration in quotes, such as "30s", "10m", "12h" or "7d"') from None
    return duration


def _longer_than_zero(value: Any) -> int:
    if not (duration := _duration(value)):
        raise ValueError("must be more than 0")
    return duration


def _milliseconds(value: Any) -> int:
    return -(-_longer_than_zero(value) // MILLISECOND)


def _size(value: Any) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        return parse_size(str(value))
    except ValueError:
        raise ValueError('must be a number of bytes, or a size in quotes, such as "500MB" or "20GiB"') from None


def _size_above_zero(value: Any) -> int:
    if not (size := _size(value)):
        raise ValueError("must be more than 0")
    return size


def _rate(value: Any) -> float:
    number, _, unit = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not number.isascii() or not number.isdigit() or not int(number) or unit not in _RATE_UNITS:
        raise ValueError('must be a rate in quotes, such as "500/s", "30/m" or "10/h"')
    return int(number) / _RATE_UNITS[unit]


def _one_of(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError("must be one of " + ", ".join(f'"{word}"' for word in words))
        return words[words.index(value)]

    return parse


def _weights(value: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, dict) or not value:
        raise ValueError("must name groups and their weights, such as {gold = 5}")
    for group, weight in value.items():
        if valid_group(group.encode()) is None:
            raise ValueError(f"names of groups must have 1 to {MOST_BYTES} bytes")
        if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= _HEAVIEST:
            raise ValueError(f"the weight of {group!r} must be a number from 1 to {_HEAVIEST}")
    return tuple(sorted(value.items()))


def parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


KEYS: Final[Mapping[str, Key]] = {
    "max_attempts": Key(About.CHANNELS, _whole(_MOST_ATTEMPTS)),
    "backoff": Key(About.CHANNELS, _one_of("exponential", "linear")),
    "backoff_min": Key(About.CHANNELS, _milliseconds, ("backoff",)),
    "backoff_max": Key(About.CHANNELS, _milliseconds, ("backoff",)),
    "jitter": Key(About.CHANNELS, _share(with_zero=True), ("backoff",)),
    "max_buried": Key(About.CHANNELS, _whole()),
    "breaker": Key(About.CHANNELS, _share(with_zero=False)),
    "ttl": Key(About.CHANNELS, _longer_than_zero),
    "ttl_action": Key(About.CHANNELS, _one_of("drop", "bury"), ("ttl",)),
    "max_rate": Key(About.CHANNELS, _rate),
    "max_in_flight": Key(About.CHANNELS, _whole(_MOST_IN_FLIGHT)),
    "max_in_flight_per_group": Key(About.CHANNELS, _whole(), may_be_dry=False),
    "order": Key(About.CHANNELS, _one_of("group"), may_be_dry=False),
    "share": Key(About.CHANNELS, _one_of("group"), may_be_dry=False),
    "weights": Key(About.CHANNELS, _weights, ("share",), may_be_dry=False),
    "max_held": Key(About.CHANNELS, _whole(), ("max_in_flight_per_group", "order", "share"), may_be_dry=False),
    "max_messages": Key(About.EITHER, _whole()),
    "max_bytes": Key(About.EITHER, _size_above_zero),
    "overflow": Key(About.EITHER, _one_of(*Overflow), ("max_messages", "max_bytes")),
    "expire_after": Key(About.EITHER, _longer_than_zero),
    "expire_full": Key(About.EITHER, parse_flag, ("expire_after",)),
    "ack": Key(About.TOPICS, _one_of(*Ack), may_be_dry=False),
    "retention_time": Key(About.TOPICS, _duration, may_be_dry=False),
    "retention_bytes": Key(About.TOPICS, _size, may_be_dry=False),
}
