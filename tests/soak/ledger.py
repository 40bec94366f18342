"""What clients were told, and what must therefore arrive. A core: the time is handed in, nothing is waited for.

A message is a number, the first word of its body. The ledger keeps it until every channel has finished it, and for
KEPT seconds more, so a ledger of a day is no larger than one of an hour.

An *interruption* is a time in which a node, or the network to it, was broken on purpose: killed, stopped, cut off. A
FIN or REQ that was sent during it, or shortly before, may have been lost, so the message may come again, and before the
delay of that REQ has passed.

A *lost connection* is one that client or nsqd gave up, as where heartbeats come too late on a busy machine. The same is
true of answers that were sent in its last seconds, but the message comes only when it has timed out. What comes sooner
is early: a clock that jumps makes nothing wait for its timeout. Nothing else is forgiven.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

KEPT: Final = 600.0  # seconds that a finished message is remembered
GRACE: Final = 1.0  # seconds before an interruption in which an answer may have been lost: guarantees.md
_MOST_TEXTS: Final = 50


@dataclass(slots=True, eq=False)
class Sent:
    """One message of a topic, shared by the topic's channels."""

    at: float
    due: float
    is_acknowledged: bool = False


@dataclass(slots=True, eq=False)
class Owed:
    """One message that a channel has not finished."""

    sent: Sent
    attempts: int = 0
    attempts_at: float = 0.0
    due: float = 0.0  # a requeue defers it until then
    requeued_at: float = -inf


@dataclass(frozen=True, slots=True)
class LostConnection:
    """A consumer's connection that ended by itself: its answers in the last seconds may not have been read."""

    since: float
    until: float
    timeout: float  # seconds after the answer until nsqd delivers such a message again, at the least


@dataclass(slots=True, eq=False)
class Channel:
    owed: dict[int, Owed] = field(default_factory=dict)
    lost_connections: list[LostConnection] = field(default_factory=list)
    finished: OrderedDict[int, float] = field(default_factory=OrderedDict)  # number -> when
    paused_at: float = inf  # no message may arrive from then on


@dataclass(slots=True)
class Interruption:
    node: str  # "" for all of them
    since: float
    until: float  # inf as long as it lasts


class Ledger:
    def __init__(self, channels: Iterable[tuple[str, str]] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.texts: list[str] = []  # what was wrong; only the first of it
        self.latest = 0.0  # seconds by which the latest deferred message was late
        self._topics: dict[str, dict[str, Channel]] = {}
        self._interruptions: list[Interruption] = []
        self._next = 0
        for topic, channel in channels:
            self.add_channel(topic, channel)

    def add_channel(self, topic: str, channel: str) -> None:
        """Add a channel, which from now on has to get what is sent to the topic."""
        self._topics.setdefault(topic, {})[channel] = Channel()

    def remove_topic(self, topic: str) -> None:
        del self._topics[topic]

    def interrupted(self, since: float, until: float = inf, node: str = "") -> Interruption:
        """Note an interruption before it begins, since its effects may be seen at once. Its end can be set later."""
        self._interruptions = [it for it in self._interruptions if it.until > since - KEPT]
        self._interruptions.append(Interruption(node, since, until))
        return self._interruptions[-1]

    def connection_lost(self, topic: str, name: str, lost: LostConnection) -> None:
        self.counts["connections lost"] += 1
        self._topics[topic][name].lost_connections.append(lost)

    # Publishing

    def sending(self, topic: str, count: int, now: float, delay: float = 0.0) -> list[int]:
        numbers = list(range(self._next, self._next + count))
        self._next += count
        self.copying(topic, numbers, now, delay)
        return numbers

    def copying(self, topic: str, numbers: Sequence[int], now: float, delay: float = 0.0) -> None:
        """Note that the same messages are published to another topic."""
        for number in numbers:
            sent = Sent(now, now + delay)
            for channel in self._topics[topic].values():
                channel.owed[number] = Owed(sent)

    def acknowledged(self, topic: str, numbers: Sequence[int]) -> None:
        self.counts["published"] += len(numbers)
        for channel in self._topics[topic].values():
            for number in numbers:
                if (owed := channel.owed.get(number)) is not None:  # the message may come before the answer
                    owed.sent.is_acknowledged = True

    def refused(self, topic: str, numbers: Sequence[int]) -> None:
        """Note that these were certainly not stored."""
        self.counts["refused"] += len(numbers)
        for channel in self._topics[topic].values():
            for number in numbers:
                channel.owed.pop(number, None)

    def unanswered(self, numbers: Sequence[int]) -> None:
        """Note that these may arrive or not."""
        self.counts["unanswered"] += len(numbers)

    # Consuming

    def delivered(self, topic: str, name: str, body: bytes, attempts: int, now: float, node: str = "") -> int:
        """Note a delivery by `node`, and return the message's number."""
        number = int(body.split(None, 1)[0])
        self.counts["delivered"] += 1
        channel = self._topics[topic][name]
        label = f"message {number} on {topic}/{name}"
        if now > channel.paused_at:
            self._violated("while paused", f"{label} came {now - channel.paused_at:.3f} s after the pause")
        if (owed := channel.owed.get(number)) is not None:
            self._check_time(channel, owed, now, node, label)
            self._check_attempts(owed, attempts, now, node, label)
        elif (finished := channel.finished.get(number)) is None:
            self._violated("unknown", f"{label} was never sent, or finished more than {KEPT:.0f} s ago")
        elif self._may_be_unheeded(finished, now, node) or _may_be_unread(channel, finished, now):
            self.counts["again"] += 1
        else:
            self._violated("again", f"{label} came again {now - finished:.3f} s after its FIN")
        return number

    def _check_time(self, channel: Channel, owed: Owed, now: float, node: str, label: str) -> None:
        due = owed.sent.due
        if now < due:
            self._violated("early", f"{label} was early by {due - now:.3f} s")
        elif now < owed.due and self._is_too_early(channel, owed, now, node):
            self._violated("early", f"{label} was early by {owed.due - now:.3f} s after a requeue")
        elif owed.attempts == 0 and due > owed.sent.at:
            self.latest = max(self.latest, now - due)

    def _is_too_early(self, channel: Channel, owed: Owed, now: float, node: str) -> bool:
        if self._may_be_unheeded(owed.requeued_at, now, node):
            return False
        if _may_be_unread(channel, owed.requeued_at, now):
            self.counts["timed out"] += 1
            return False
        return True

    def _check_attempts(self, owed: Owed, attempts: int, now: float, node: str, label: str) -> None:
        least = owed.attempts if self._may_be_unheeded(owed.attempts_at, now, node) else owed.attempts + 1
        if attempts < least:
            self._violated("attempts", f"attempts of {label} are {attempts} after {owed.attempts}")
        owed.attempts, owed.attempts_at = attempts, now

    def requeueing(self, topic: str, name: str, number: int, delay: float, now: float) -> None:
        """Note a requeue, just before the REQ is sent."""
        self.counts["requeued"] += 1
        if (owed := self._topics[topic][name].owed.get(number)) is not None:
            owed.due, owed.requeued_at = now + delay, now

    def finishing(self, topic: str, name: str, number: int, now: float) -> None:
        """Note a finish, just after the FIN was sent."""
        channel = self._topics[topic][name]
        channel.owed.pop(number, None)
        channel.finished[number] = now
        channel.finished.move_to_end(number)
        while channel.finished and next(iter(channel.finished.values())) < now - KEPT:
            channel.finished.popitem(last=False)

    def pausing(self, topic: str, name: str, at: float) -> None:
        """Note a pause: no message may arrive after `at`. inf: the pause is over."""
        self._topics[topic][name].paused_at = at

    def _may_be_unheeded(self, answered_at: float, now: float, node: str) -> bool:
        """Return whether an interruption since then may have lost an answer that was sent or saved at `answered_at`."""
        return any(
            it.node in ("", node) and it.since - GRACE <= answered_at <= it.until and now >= it.since
            for it in self._interruptions
        )

    # What is left

    def waiting(self) -> int:
        """Return how many acknowledged messages are not finished, counted once for each channel that owes them."""
        return sum(1 for _ in self._waiting())

    def oldest(self, now: float) -> float:
        """Return for how many seconds the oldest of them has been due, except on paused channels."""
        dues = [max(it.sent.due, it.due) for _, channel, _, it in self._waiting() if channel.paused_at == inf]
        return max(0.0, now - min(dues, default=now))

    def close(self) -> None:
        """Report everything that is still owed as lost."""
        for label, _, number, owed in self._waiting():
            how = f"attempts {owed.attempts}, due {owed.sent.due - owed.sent.at:.1f} s after it was sent"
            self._violated("lost", f"message {number} on {label} is lost: {how}")

    def _waiting(self) -> Iterator[tuple[str, Channel, int, Owed]]:
        for topic, channels in self._topics.items():
            for name, channel in channels.items():
                for number, owed in channel.owed.items():
                    if owed.sent.is_acknowledged:
                        yield f"{topic}/{name}", channel, number, owed

    def failed(self, kind: str, text: str) -> None:
        """Report something that is wrong apart from messages."""
        self._violated(kind, text)

    def _violated(self, kind: str, text: str) -> None:
        self.wrong[kind] += 1
        if len(self.texts) < _MOST_TEXTS:
            self.texts.append(text)


def _may_be_unread(channel: Channel, answered_at: float, now: float) -> bool:
    """Return whether the answer may be lost with its connection, so that the message has timed out since."""
    return any(
        it.since <= answered_at <= it.until and now >= answered_at + it.timeout for it in channel.lost_connections
    )
