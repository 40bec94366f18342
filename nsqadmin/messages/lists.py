"""Lists that nodes make of one channel's messages, of those that are buried or of those that are deferred.

Each node is asked how many it has, and for its list. The lists are joined page by page into one in the order of time.
Each has its own places, at which it goes on. All of them together are a text for a URL: `17@n1:4151 4@n2:4151`.
A node that does not answer is named, with what it had when it was last seen. It is never counted as one with nothing.
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
    """What one user may see of the texts that quote messages: see reasons.py."""

    def shown(self, reason: str) -> str: ...

    def name(self, reason: str) -> str: ...


# How many there are


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCount:
    """How many of these messages one node has in the channel."""

    node: str
    count: int = 0
    error: str = ""  # why it is not known now; then `count` is what it had when it was last seen

    @property
    def listed_reasons(self) -> tuple[str, ...]:
        """The reasons for which it has buried messages, as far as it lists them."""
        return ()

    def seen(self, sight: Sight) -> Self:
        """Return what a user with this sight may see of it."""
        return self


N = TypeVar("N", bound=NodeCount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Generic[N]):
    """How many of these messages all nodes of a channel have."""

    nodes: tuple[N, ...]

    @property
    def answered(self) -> tuple[N, ...]:
        return tuple(it for it in self.nodes if not it.error)

    @property
    def missing(self) -> tuple[N, ...]:
        """The nodes that have not told what they have."""
        return tuple(it for it in self.nodes if it.error)

    @property
    def count(self) -> int:
        """How many there are on the nodes that answer."""
        return sum(it.count for it in self.answered)

    def seen(self, sight: Sight) -> Self:
        return replace(self, nodes=tuple(it.seen(sight) for it in self.nodes))


# Which ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Which messages to look for: the next `limit` that match, by node behind these places."""

    after: Mapping[str, str]
    limit: int
    node: str = ""  # only there
    reason: str = ""  # only with this text in the reason for which they were buried; nodes look for it
    wanted: Filter = EVERYTHING  # only what matches; we look for it
    seconds: float = 2.0  # then a search stops, and goes on with the next step
    with_bodies: bool = True  # what is found has its body

    @property
    def is_search(self) -> bool:
        """Whether bodies have to be read that are not shown."""
        return self.wanted != EVERYTHING or not self.with_bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMessage(ABC):
    """One message of a list. Without `message`, `unread` says why its body cannot be had."""

    node: str
    sequence: int
    attempts: int
    id: str = ""  # empty: not known, as the message cannot be read
    message: Message | None = None
    unread: str = ""
    is_wanted: bool = True  # it is shown; otherwise it was only looked at

    @property
    @abstractmethod
    def place(self) -> str:
        """Its position in the node's list, which continues after it."""

    @property
    @abstractmethod
    def at(self) -> float:
        """The time by which the lists of all nodes are merged."""

    @property
    @abstractmethod
    def pick(self) -> str:
        """Its name in a form. Empty if you can't select it."""

    def seen(self, sight: Sight) -> Self:
        """Return the part of it that a user with this sight may see. Its body is masked already."""
        return self


M = TypeVar("M", bound=ListedMessage)


@dataclass(slots=True)
class Part(Generic[M]):
    """What was read of one node's list, in its order."""

    lines: list[M] = field(default_factory=list)
    goes_on: bool = False  # there is more behind them
    problem: str = ""  # why it was not read, or not to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[M]):
    """One page of all lists, or one step of a search."""

    lines: tuple[M, ...] = ()
    after: str = ""  # where the next page begins; empty: nothing is left
    looked: int = 0  # lines that were looked at
    reached: float | None = None  # the time of the last one of these
    missing: tuple[tuple[str, str], ...] = ()  # nodes that could not be read, or not to the end, and why
    reason: str = ""  # what the user may see of the reason that was looked for


class ListKind(ABC, Generic[N, M]):
    """What the lists of one kind have of their own: see buried.py and deferred.py."""

    path: str  # on a node
    also: tuple[str, ...] = ()  # paths of which a node is asked as well when its messages are counted
    has_log: bool = False  # its messages are named with the id of a log, which a node tells with their number
    nothing: frozenset[str]  # codes of errors by which a node says that it has none
    words: Mapping[str, str] = MappingProxyType({})  # what other codes mean

    @abstractmethod
    def last_known(self, row: ChannelNode, error: str) -> N:
        """Return what the node had when it was last seen, and why it is not known now."""

    @abstractmethod
    def count_in(self, node: str, answers: Sequence[Any]) -> N:
        """Read the answers to the summary, and to the paths in `also`. Raise KeyError, TypeError, ValueError."""

    def log_of(self, node: N) -> str:
        """Return the id of the topic's log, which has to be named to list more; empty: it need not."""
        return ""

    def arguments(self, look: Look) -> Mapping[str, str]:
        """Return what else the node is asked for."""
        return {}

    @abstractmethod
    def line_in(self, node: N, line: Mapping[str, Any], message: Message | None, *, is_wanted: bool) -> M:
        """Read a line of the list. Raise KeyError, TypeError, ValueError."""

    @abstractmethod
    def place_before(self, place: str) -> str:
        """Return the place just before a message, given its own; empty: before all. Raise ValueError."""


def merged(parts: Mapping[str, Part[M]], after: Mapping[str, str], limit: int) -> ListPage[M]:
    """Return the next `limit` wanted lines of all nodes. `after` is where each part begins.

    It ends where a node's part ends although its list goes on: what comes next there may come before what others have.
    A node whose list could not be read to the end holds up nobody.
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
