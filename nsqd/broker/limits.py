"""How much a topic may still be given in this turn, by the bounds of the policy: its own, and those of its channels.

What a channel holds is what waits in it, now or for its time. What a topic holds is what its hindmost channel has not
passed yet. History, which only retention keeps, does not count: `retention_bytes` bounds that.

A bound that drops or buries takes only messages that wait for their first delivery. A message that was delivered before,
or that an operator has given back, stays: somebody wants it. If such messages fill a channel, new ones have no room.

Bytes are an estimate where a bound lies within a file of the log: each message counts as much as the others there.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqd.broker.rules import Overflow

if TYPE_CHECKING:
    from nsqd.broker.rules import ChannelRules, TopicRules

    AnyRules = ChannelRules | TopicRules


# How often what is held is measured again while the oldest messages are dropped: they may be smaller than the mean.
MOST_LOOKS: Final = 20


class Usage(NamedTuple):
    """How much something holds."""

    messages: int
    size: int  # bytes

    def plus(self, other: Usage) -> Usage:
        return Usage(self.messages + other.messages, self.size + other.size)


class LimitReached(NamedTuple):
    """The bound that a publish would exceed."""

    rule: str
    words: str


def has_limit(rules: AnyRules) -> bool:
    return rules.max_messages is not None or rules.max_bytes is not None


def refuses(rules: AnyRules) -> bool:
    """Return whether these rules ever refuse a publish."""
    return has_limit(rules) and rules.overflow is Overflow.REJECT


def drops(rules: AnyRules) -> bool:
    """Return whether these rules ever drop or bury the oldest messages."""
    return has_limit(rules) and rules.overflow is not Overflow.REJECT


def excess(rules: AnyRules, held: Usage) -> int:
    """Return how many messages are beyond the bounds, or a few more if sizes differ."""
    beyond = 0
    if rules.max_messages is not None:
        beyond = held.messages - rules.max_messages
    if rules.max_bytes is not None and held.size > rules.max_bytes:
        mean = held.size / max(held.messages, 1)
        beyond = max(beyond, held.messages - int(rules.max_bytes / mean))
    return max(beyond, 0)


def capacity(rules: AnyRules, sample: Usage) -> int | None:
    """Return how many messages fit the bounds, if they are as large as the sample's mean; None: any number."""
    most = rules.max_messages
    if rules.max_bytes is not None and sample.size:
        by_size = rules.max_bytes * sample.messages // sample.size
        most = by_size if most is None else min(most, by_size)
    return most


def excess_with(rules: AnyRules, held: Usage, coming: Usage) -> int:
    """Return how many of the held messages have to go so that the bytes of the coming ones fit, by the mean of the held.

    This is about bytes only. A bound of messages drops the oldest after others were written, and is exact.
    """
    if rules.max_bytes is None or (too_much := held.size + coming.size - rules.max_bytes) <= 0:
        return 0
    return min(-(-too_much * held.messages // max(held.size, 1)), held.messages)


def count_cause(counts: dict[str, int], cause: str, count: int) -> None:
    """Count what a rule has done to messages, or would have done."""
    if count > 0:
        counts[cause] = counts.get(cause, 0) + count


class Headroom:
    """What is left, of all bounds that refuse publishes."""

    __slots__ = ("_bytes", "_bytes_of", "_messages", "_messages_of")

    def __init__(self) -> None:
        self._messages: float = inf
        self._messages_of = ""
        self._bytes: float = inf
        self._bytes_of = ""

    def narrow(self, name: str, rules: AnyRules, held: Usage) -> None:
        """Take these bounds of a topic or a channel into account."""
        if not refuses(rules):
            return
        if rules.max_messages is not None and rules.max_messages - held.messages < self._messages:
            self._messages = float(rules.max_messages - held.messages)
            self._messages_of = f"{name} is full (max_messages = {rules.max_messages})"
        if rules.max_bytes is not None and rules.max_bytes - held.size < self._bytes:
            self._bytes = float(rules.max_bytes - held.size)
            self._bytes_of = f"{name} is full (max_bytes = {rules.max_bytes})"

    def take(self, messages: int, size: int) -> LimitReached | None:
        """Use the room for a publish, or return the bound that is in its way."""
        if messages > self._messages:
            return LimitReached("max_messages", self._messages_of)
        if size > self._bytes:
            return LimitReached("max_bytes", self._bytes_of)
        self._messages -= messages
        self._bytes -= size
        return None
