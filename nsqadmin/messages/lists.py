"""The nodes' lists of one channel's messages: buried ones, deferred ones, or those in flight.

We ask each node for its number of messages and for its list, and merge the lists by time, page by page. Each list has
its own position. All positions together are a text for a URL: `17@n1:4151 4@n2:4151`. We name nodes that don't answer,
with their last known numbers, and never count them as empty.
"""

from __future__ import annotations

import heapq
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from nsqadmin.messages.filters import Filter

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode
    from nsqadmin.messages.model import Message

EVERYTHING: Final = Filter()
NANOSECOND: Final = 1e-9  # seconds
_HIGHEST: Final = (1 << 63) - 1
_LONGEST: Final = 1024  # characters of a reason or a name; nsqd allows fewer
_place: Final = re.compile(r"([0-9a-f,]{1,60})@(\S+)", re.ASCII).fullmatch


class BadRequest(ValueError):
    """The request makes no sense; the message is for the user."""


class Sight(Protocol):
    """Controls which texts quoting messages a user may see: see reasons.py."""

    is_whole: bool  # the user may see messages

    def shown(self, reason: str) -> str: ...

    def shown_part(self, text: str) -> str: ...

    def name(self, reason: str) -> str: ...


# Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCount:
    """The number of these messages of the channel on one node."""

    node: str
    count: int = 0
    error: str = ""  # why it is unknown now; `count` is then the last known number

    @property
    def listed_reasons(self) -> tuple[str, ...]:
        """The burial reasons, as far as the node lists them."""
        return ()

    def seen(self, sight: Sight) -> Self:
        """Return the part that a user with this sight may see."""
        return self


N = TypeVar("N", bound=NodeCount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Generic[N]):
    """The number of these messages on all nodes of a channel."""

    nodes: tuple[N, ...]

    @property
    def answered(self) -> tuple[N, ...]:
        return tuple(it for it in self.nodes if not it.error)

    @property
    def missing(self) -> tuple[N, ...]:
        """The nodes that haven't reported their number."""
        return tuple(it for it in self.nodes if it.error)

    @property
    def count(self) -> int:
        """The total on the nodes that answer."""
        return sum(it.count for it in self.answered)

    def seen(self, sight: Sight) -> Self:
        return replace(self, nodes=tuple(it.seen(sight) for it in self.nodes))


# Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A query for messages: the next `limit` matches, after these positions of each node."""

    after: Mapping[str, str]
    limit: int
    node: str = ""  # only there
    reason: str = ""  # only with this text in the burial reason; nodes check it
    client: str = ""  # only in flight to consumers of this name; nodes check it
    wanted: Filter = EVERYTHING  # only matches; we check it
    seconds: float = 2.0  # then a search stops, and the next step continues it
    with_bodies: bool = True  # matches include their bodies

    @property
    def is_search(self) -> bool:
        """True if we have to read bodies that aren't shown."""
        return self.wanted != EVERYTHING or not self.with_bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMessage(ABC):
    """One message of a list. Without `message`, `unread` says why we have no body."""

    node: str
    sequence: int
    attempts: int
    id: str = ""  # empty: unknown, because the message can't be read
    message: Message | None = None
    unread: str = ""
    is_wanted: bool = True  # a match; otherwise it only counts as looked at

    @property
    @abstractmethod
    def place(self) -> str:
        """Its position in the node's list, which continues after it."""

    @property
    @abstractmethod
    def at(self) -> float:
        """The time by which we merge the lists of all nodes."""

    @property
    @abstractmethod
    def pick(self) -> str:
        """Its name in a form. Empty if you can't select it."""

    def seen(self, sight: Sight) -> Self:
        """Return the part that a user with this sight may see. Its body is masked already."""
        return self


M = TypeVar("M", bound=ListedMessage)


@dataclass(slots=True)
class Part(Generic[M]):
    """The part of one node's list that was read, in its order."""

    lines: list[M] = field(default_factory=list)
    goes_on: bool = False  # the list continues after them
    problem: str = ""  # why it wasn't read, or not to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[M]):
    """One page of all lists, or one step of a search."""

    lines: tuple[M, ...] = ()
    after: str = ""  # start of the next page; empty: nothing is left
    looked: int = 0  # lines that were examined
    reached: float | None = None  # time of the last one
    missing: tuple[tuple[str, str], ...] = ()  # nodes that couldn't be read, or not to the end, and why
    reason: str = ""  # the part of the selected reason that the user may see


class ListKind(ABC, Generic[N, M]):
    """The differences between the kinds: see buried.py, deferred.py and in_flight.py."""

    path: str  # on a node
    also: tuple[str, ...] = ()  # further paths to request when counting a node's messages
    has_log: bool = False  # messages are named with the id of a log, which a node sends with their number
    nothing: frozenset[str]  # codes of errors by which a node says that it has none
    words: Mapping[str, str] = MappingProxyType({})  # meanings of other codes

    @abstractmethod
    def last_known(self, row: ChannelNode, error: str) -> N:
        """Return the node's last known number, and why it is unknown now."""

    @abstractmethod
    def count_in(self, node: str, answers: Sequence[Any]) -> N:
        """Parse the answers to the summary, and to the paths in `also`. Raise KeyError, TypeError, ValueError."""

    def log_of(self, node: N) -> str:
        """Return the id of the topic's log, which is needed to list more; empty: not needed."""
        return ""

    def arguments(self, look: Look) -> Mapping[str, str]:
        """Return further arguments of the request to the node."""
        return {}

    @abstractmethod
    def line_in(self, node: N, line: Mapping[str, Any], message: Message | None, *, is_wanted: bool) -> M:
        """Parse a line of the list. Raise KeyError, TypeError, ValueError."""

    @abstractmethod
    def place_before(self, place: str) -> str:
        """Return the position just before a message, given its own; empty: before all. Raise ValueError."""


def merged(parts: Mapping[str, Part[M]], after: Mapping[str, str], limit: int) -> ListPage[M]:
    """Return the next `limit` matching lines of all nodes. `after` is where each part begins.

    The page ends where a node's part ends although its list continues: the next line there may come before lines of
    other nodes. A node whose list couldn't be read to the end doesn't delay the others.
    """
    shown: list[M] = []
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
    return ListPage(
        lines=tuple(shown),
        after=written(places) if goes_on else "",
        looked=looked,
        reached=reached,
        missing=tuple(sorted((node, part.problem) for node, part in parts.items() if part.problem)),
    )


def _order(line: ListedMessage) -> tuple[float, str]:
    return line.at, line.node


def written(places: Mapping[str, str]) -> str:
    """Format the position after which each node's list continues."""
    return " ".join(f"{place}@{node}" for node, place in places.items())


def parse_places(text: str) -> dict[str, str]:
    """Parse the output of `written`. Raise ValueError."""
    found = [_place(word) for word in text.split()]
    if not all(found):
        raise ValueError(f"{text[:100]!r} isn't a place in these lists")
    return {it[2]: it[1] for it in found if it is not None}


# A node's answer. Errors don't quote it, because it could be any text.


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
