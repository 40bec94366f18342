"""Deferred messages, one of the kinds of lists: requests to nodes, and parsing their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.messages.lists import NANOSECOND, ListedMessage, ListKind, NodeCount, text_in, whole_in

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode
    from nsqadmin.messages.model import Message

_LAST: Final = (1 << 63) - 1  # sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDeferred(NodeCount):
    """The number of deferred messages of the channel on one node."""

    log: str = ""  # id of the topic's log, to which sequences refer; empty: messages there can't be named


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral(ListedMessage):
    """One deferred message."""

    log: str
    due: float  # when it becomes due
    after: str  # its place

    @property
    def place(self) -> str:
        return self.after

    @property
    def at(self) -> float:
        return self.due

    @property
    def key(self) -> str:
        return self.message.key if self.message is not None else ""

    @property
    def pick(self) -> str:
        """Its name in a form, a word of a Selection; empty: it can't be named."""
        return f"{self.sequence}@{self.node}@{self.log}" if self.log else ""


class Deferred(ListKind[NodeDeferred, Deferral]):
    """The kind of messages that a channel has deferred."""

    path = "/channel/deferred"
    has_log = True
    nothing = frozenset(("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"))
    words = MappingProxyType(
        {
            "NOT_FOUND": "it cannot list deferred messages: it is NSQ's nsqd, or an older version of ours",
            "STARTED_ANEW": "it was restarted, so its list has to be read from the start again",
            "INVALID_ARG_AFTER": "this isn't a place in its list",
        }
    )

    def last_known(self, row: ChannelNode, error: str) -> NodeDeferred:
        return NodeDeferred(node=row.node, count=row.deferred_count, error=error)

    def count_in(self, node: str, answers: Sequence[Any]) -> NodeDeferred:
        (raw,) = answers
        return NodeDeferred(node=node, count=whole_in(raw["count"]), log=text_in(raw["log"] or ""))

    def log_of(self, node: NodeDeferred) -> str:
        return node.log

    def line_in(
        self, node: NodeDeferred, line: Mapping[str, Any], message: Message | None, *, is_wanted: bool
    ) -> Deferral:
        return Deferral(
            node=node.node,
            log=node.log,
            sequence=whole_in(line["sequence"]),
            due=whole_in(line["due"]) * NANOSECOND,
            attempts=whole_in(line["attempts"]),
            after=text_in(line["after"]),
            id=text_in(line.get("id", "")),
            message=message,
            unread=text_in(line.get("unread", "")),
            is_wanted=is_wanted,
        )

    def place_before(self, place: str) -> str:
        return before_in_time(place)


DEFERRED: Final = Deferred()


def before_in_time(place: str) -> str:
    """Return the position just before a message in a list by time. Raise ValueError."""
    run, at, sequence = place.split(",")
    if int(sequence):
        return f"{run},{at},{int(sequence) - 1}"
    return f"{run},{int(at) - 1},{_LAST}"
