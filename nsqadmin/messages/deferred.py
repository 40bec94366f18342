"""What a channel has deferred on its nodes: records, and how a node's answers are read.

A node that does not answer is named, with what it had when it was last seen. It is never counted as one with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.messages.lists import text_in, whole_in

if TYPE_CHECKING:
    from nsqadmin.messages.filters import Filter
    from nsqadmin.messages.model import Message

_NANOSECOND: Final = 1e-9
_LAST: Final = (1 << 63) - 1  # sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredLook:
    """Which deferred messages of a channel to look for: the next `limit` that match, by node behind these places."""

    wanted: Filter
    limit: int
    after: Mapping[str, str]
    node: str = ""  # only there
    seconds: float = 2.0  # then it stops, and goes on with the next step
    with_bodies: bool = True  # what is found has its body


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDeferred:
    """How many messages one node has deferred in the channel."""

    node: str
    count: int = 0
    log: str = ""  # the id of the topic's log, which sequences are about; empty: messages there cannot be named
    error: str = ""  # why it is not known now; then `count` is what it had when it was last seen


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredSummary:
    """How many messages all nodes of a channel have deferred."""

    nodes: tuple[NodeDeferred, ...]

    @property
    def answered(self) -> tuple[NodeDeferred, ...]:
        return tuple(it for it in self.nodes if not it.error)

    @property
    def missing(self) -> tuple[NodeDeferred, ...]:
        """The nodes that have not told what they have."""
        return tuple(it for it in self.nodes if it.error)

    @property
    def count(self) -> int:
        """How many messages are deferred on the nodes that answer."""
        return sum(it.count for it in self.answered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """One deferred message. Without `message`, `unread` says why its body cannot be had."""

    node: str
    log: str
    sequence: int
    due: float  # when it becomes due
    attempts: int
    place: str  # behind which the node's list goes on
    id: str = ""  # empty: not known, as the message cannot be read
    message: Message | None = None
    unread: str = ""
    is_wanted: bool = True  # it matches the search

    @property
    def at(self) -> float:
        return self.due

    @property
    def key(self) -> str:
        return self.message.key if self.message is not None else ""

    @property
    def pick(self) -> str:
        """Its name in a form, a word of a Selection; empty: it cannot be named."""
        return f"{self.sequence}@{self.node}@{self.log}" if self.log else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredPage:
    """One step of a look at deferred messages."""

    deferrals: tuple[Deferral, ...] = ()  # by when they are due, the next one first
    after: str = ""  # where the next step begins; empty: nothing is left
    looked: int = 0  # messages that were looked at
    reached: float | None = None  # up to which due time
    missing: tuple[tuple[str, str], ...] = ()  # nodes that could not be read, or not to the end, and why


def place_before(place: str) -> str:
    """Return the place just before a message, given its own. Raise ValueError."""
    run, due, sequence = place.split(",")
    if int(sequence):
        return f"{run},{due},{int(sequence) - 1}"
    return f"{run},{int(due) - 1},{_LAST}"


def deferred_in(node: str, raw: Any) -> NodeDeferred:
    """Read the answer to /channel/deferred?summary=true. Raise KeyError, TypeError, ValueError."""
    return NodeDeferred(node=node, count=whole_in(raw["count"]), log=text_in(raw["log"] or ""))


def deferral_in(
    node: str, log: str, line: Mapping[str, Any], message: Message | None, *, is_wanted: bool = True
) -> Deferral:
    """Read a line of /channel/deferred. Raise KeyError, TypeError, ValueError."""
    return Deferral(
        node=node,
        log=log,
        sequence=whole_in(line["sequence"]),
        due=whole_in(line["due"]) * _NANOSECOND,
        attempts=whole_in(line["attempts"]),
        place=text_in(line["after"]),
        id=text_in(line.get("id", "")),
        message=message,
        unread=text_in(line.get("unread", "")),
        is_wanted=is_wanted,
    )
