"""The limits of a policy: how much a topic or channel may hold, and how much room this turn's publishes have.

`Channel.apply_limits` and `Topic.drop_beyond_limits` enforce them.

A channel's usage counts its waiting and deferred messages. A topic's usage runs from its slowest channel's cursor to the
tail. If a channel holds messages (groups.py), which are behind its cursor, they count as well, but not what was finished
in between: otherwise one message that is held for an hour would count like all messages of that hour. Finished messages
that only retention keeps don't count; `retention_bytes` limits them.

A limit that drops or buries only takes messages that have never been delivered. Retries stay, and so do messages that an
operator has given back, because someone wants them. If they fill the channel, new messages have no room.

Bytes are estimated where a range starts in the middle of a log file: we take the mean size of the file's messages.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqd.broker.rules import Overflow

if TYPE_CHECKING:
    from nsqd.broker.rules import ChannelRules, TopicRules

    AnyRules = ChannelRules | TopicRules


# We drop by the mean size, but the oldest messages may be smaller. So we measure again, at most this often.
MOST_LOOKS: Final = 20


class Usage(NamedTuple):
    """How much a topic or channel holds, as its limits count it."""

    messages: int
    size: int  # bytes

    def plus(self, other: Usage) -> Usage:
        return Usage(self.messages + other.messages, self.size + other.size)

    def at_least(self, other: Usage) -> Usage:
        return Usage(max(self.messages, other.messages), max(self.size, other.size))


class LimitReached(NamedTuple):
    """The limit that a publish would exceed."""

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
    """Return by how many messages the usage exceeds the limits, based on the mean size."""
    beyond = 0
    if rules.max_messages is not None:
        beyond = held.messages - rules.max_messages
    if rules.max_bytes is not None and held.size > rules.max_bytes:
        mean = held.size / max(held.messages, 1)
        beyond = max(beyond, held.messages - int(rules.max_bytes / mean))
    return max(beyond, 0)


def capacity(rules: AnyRules, sample: Usage) -> int | None:
    """Return how many messages of the sample's mean size the limits allow, or None if there is no limit."""
    most = rules.max_messages
    if rules.max_bytes is not None and sample.size:
        by_size = rules.max_bytes * sample.messages // sample.size
        most = by_size if most is None else min(most, by_size)
    return most


def excess_with(rules: AnyRules, held: Usage, incoming: Usage) -> int:
    """Return how many held messages must go to make room for the bytes of `incoming`, based on their mean size.

    This ignores `max_messages`, because that limit is applied exactly, after the new messages have been written.
    """
    if rules.max_bytes is None or (too_much := held.size + incoming.size - rules.max_bytes) <= 0:
        return 0
    return min(-(-too_much * held.messages // max(held.size, 1)), held.messages)


def count_cause(counts: dict[str, int], cause: str, count: int) -> None:
    """Count what a rule has done to messages, or would have done."""
    if count > 0:
        counts[cause] = counts.get(cause, 0) + count


class Headroom:
    """The room left for publishes under all limits that reject them."""

    __slots__ = ("_bytes", "_bytes_of", "_messages", "_messages_of")

    def __init__(self) -> None:
        self._messages: float = inf
        self._messages_of = ""
        self._bytes: float = inf
        self._bytes_of = ""

    def narrow(self, name: str, rules: AnyRules, held: Usage) -> None:
        """Reduce the room if the limits of this topic or channel leave less."""
        if not refuses(rules):
            return
        if rules.max_messages is not None and rules.max_messages - held.messages < self._messages:
            self._messages = float(rules.max_messages - held.messages)
            self._messages_of = f"{name} is full (max_messages = {rules.max_messages})"
        if rules.max_bytes is not None and rules.max_bytes - held.size < self._bytes:
            self._bytes = float(rules.max_bytes - held.size)
            self._bytes_of = f"{name} is full (max_bytes = {rules.max_bytes})"

    def take(self, messages: int, size: int) -> LimitReached | None:
        """Take the room for a publish, or return the limit that it would exceed."""
        if messages > self._messages:
            return LimitReached("max_messages", self._messages_of)
        if size > self._bytes:
            return LimitReached("max_bytes", self._bytes_of)
        self._messages -= messages
        self._bytes -= size
        return None
