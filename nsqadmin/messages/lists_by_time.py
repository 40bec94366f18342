"""The lists that nodes order by time, deferred messages and those in flight, and the parts that both have in common.

A position in such a list is a text of the node's: the id of its run, a time and a sequence, for example
`9f1c03aa,1500000,42`. Messages are named with the id of the topic's log, because sequences mean nothing without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from nsqadmin.messages.lists import ListedMessage, ListKind, NodeCount

_LAST: Final = (1 << 63) - 1  # sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCount(NodeCount):
    """The number of these messages of the channel on one node."""

    log: str = ""  # id of the topic's log, to which sequences refer; empty: there is no history, and nothing to name


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedMessage(ListedMessage):
    """One message of such a list."""

    log: str
    after: str  # its place

    @property
    def place(self) -> str:
        return self.after


N = TypeVar("N", bound=LoggedCount)
M = TypeVar("M", bound=TimedMessage)


class ListByTime(ListKind[N, M]):
    has_log = True
    nothing = frozenset(("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"))

    def log_of(self, node: N) -> str:
        return node.log

    def place_before(self, place: str) -> str:
        run, at, sequence = place.split(",")
        if int(sequence):
            return f"{run},{at},{int(sequence) - 1}"
        return f"{run},{int(at) - 1},{_LAST}"


def words_about(messages: str) -> Mapping[str, str]:
    """Return the meanings of the codes with which nodes refuse a list of these messages."""
    return MappingProxyType(
        {
            "NOT_FOUND": f"it cannot list {messages}: it is a Go nsqd or an older version",
            "STARTED_ANEW": "it was restarted, so its list has to be read from the start again",
            "INVALID_ARG_AFTER": "this isn't a place in its list",
        }
    )
