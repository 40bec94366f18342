"""Lists that nodes make of one channel's messages, joined page by page into one list in the order of time.

Each node's list has its own places, at which it goes on. All of them together are a text for a URL: `17@n1:4151 4@n2:4151`.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

_HIGHEST: Final = (1 << 63) - 1
_LONGEST: Final = 1024  # characters of a reason or a name; nsqd allows fewer
_place: Final = re.compile(r"([0-9a-f,]{1,60})@(\S+)", re.ASCII).fullmatch


class Listed(Protocol):
    """One line of a node's list."""

    @property
    def node(self) -> str: ...

    @property
    def place(self) -> str:
        """Behind which the node's list goes on."""

    @property
    def at(self) -> float:
        """The time by which all lists are ordered."""

    @property
    def is_wanted(self) -> bool:
        """Whether it is shown; otherwise it was only looked at."""


L = TypeVar("L", bound=Listed)


@dataclass(slots=True)
class Part(Generic[L]):
    """What was read of one node's list, in its order."""

    lines: list[L] = field(default_factory=list)
    goes_on: bool = False  # there is more behind them
    problem: str = ""  # why it was not read, or not to the end


@dataclass(frozen=True, slots=True)
class Merged(Generic[L]):
    """One page of all lists."""

    lines: tuple[L, ...]
    after: str  # where the next page begins; empty: nothing is left
    looked: int  # lines that were looked at
    reached: float | None  # the time of the last one of these


def merged(parts: Mapping[str, Part[L]], after: Mapping[str, str], limit: int) -> Merged[L]:
    """Return the next `limit` wanted lines of all nodes. `after` is where each part begins.

    It ends where a node's part ends although its list goes on: what comes next there may come before what others have.
    A node whose list could not be read to the end holds up nobody.
    """
    shown: list[L] = []
    places, left = dict(after), {node: len(part.lines) for node, part in parts.items()}
    looked, reached = 0, None
    for line in heapq.merge(*(part.lines for part in parts.values()), key=_order):
        if len(shown) == limit:
            break
        looked, reached = looked + 1, line.at
        places[line.node] = line.place
        left[line.node] -= 1
        if line.is_wanted:
            shown.append(line)
        if not left[line.node] and parts[line.node].goes_on and not parts[line.node].problem:
            break
    goes_on = any(left.values()) or any(part.goes_on for part in parts.values())
    return Merged(tuple(shown), written(places) if goes_on else "", looked, reached)


def missing_of(parts: Mapping[str, Part[L]]) -> tuple[tuple[str, str], ...]:
    """Return the nodes that could not be read, or not to the end, and why."""
    return tuple(sorted((node, part.problem) for node, part in parts.items() if part.problem))


def _order(line: Listed) -> tuple[float, str]:
    return line.at, line.node


def written(places: Mapping[str, str]) -> str:
    """Write behind which place each node's list goes on."""
    return " ".join(f"{place}@{node}" for node, place in places.items())


def parse_places(text: str) -> dict[str, str]:
    """Read what `written` has written. Raise ValueError."""
    found = [_place(word) for word in text.split()]
    if not all(found):
        raise ValueError(f"{text[:100]!r} is no place in these lists")
    return {it[2]: it[1] for it in found if it is not None}


# A node's answer. An error does not quote it, as it may be any text.


def whole_in(value: Any) -> int:
    """Read a count or a time. Raise TypeError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _HIGHEST:
        raise TypeError(f"{type(value).__name__} is not a count")
    return value


def text_in(value: Any) -> str:
    """Read a text. Raise TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is no text")
    return value[:_LONGEST]
