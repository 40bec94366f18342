"""Deferred messages, one of the kinds of lists: requests to nodes, and parsing their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.messages.lists import NANOSECOND, text_in, whole_in
from nsqadmin.messages.lists_by_time import ListByTime, LoggedCount, TimedMessage, words_about

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode
    from nsqadmin.messages.model import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDeferred(LoggedCount):
    """The number of deferred messages of the channel on one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral(TimedMessage):
    """One deferred message."""

    due: float  # when it becomes due

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


class Deferred(ListByTime[NodeDeferred, Deferral]):
    """The kind of messages that a channel has deferred."""

    path = "/channel/deferred"
    words = words_about("deferred messages")

    def last_known(self, row: ChannelNode, error: str) -> NodeDeferred:
        return NodeDeferred(node=row.node, count=row.deferred_count, error=error)

    def count_in(self, node: str, answers: Sequence[Any]) -> NodeDeferred:
        (raw,) = answers
        return NodeDeferred(node=node, count=whole_in(raw["count"]), log=text_in(raw["log"] or ""))

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


DEFERRED: Final = Deferred()
