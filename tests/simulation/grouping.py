"""The part of the ledger about groups: who may get the next message of a channel, as clients see it.

It knows the group of each message by its body, and computes everything else from what clients got and answered, with the
rules that are in force at a delivery:

- **A limit**: never are more messages of a group, or of the channel, in flight than the limit says. A delivery is in flight until its answer,
  or until its time is over, or nsqd ends.
- **An order**: one at a time, and never a message before an earlier unfinished one of its group. A message that was
  delivered before comes before all later ones, wherever it waits meanwhile: requeued, timed out, or after a restart. What
  was buried holds up nothing, so a kicked message may come after later ones, and nothing else may. What at-least-once
  repeats after a kill is unfinished again, and goes on in order from there.
- **`max_held`**: no message is held beyond it.
- **Nobody starves.** While a group has a message that may go, others get only so many. If groups share, that is each
  group's weight; otherwise the cursor and the groups take turns. A group that could go must not wait for nothing at all.

Two messages of a group may change places if nobody has had the earlier one and it is later than the log says: it is not
due yet, or it was given back by itself (it was due, kicked, or redelivered), and has to be read from disk first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.channel import Channel
from nsqd.broker.rules import ChannelRules
from tests.simulation.ledger import Ledger
from tests.simulation.models import ChannelModel, Owed, TopicModel
from tests.simulation.promise import Violation

LONGEST: Final = 128  # bytes of a group
NOBODY: Final = b""  # messages without a group
PATIENCE: Final = 1  # a factor for what others may get; larger if messages are sorted in small slices
_SLACK: Final = 6  # deliveries, because consumers take several at once
# Seconds in which everything that waits has certainly been read from disk. Nothing is read while no consumer has room, so
# of a pause between two deliveries, only a part counts.
_READING: Final = 5.0
_LONGEST_PAUSE: Final = 0.5

_Key = tuple[str, str, bytes]  # topic, channel, group


def group_of(value: bytes | None) -> bytes:
    """Return the group that a message with this `nsq-group` has. None: it has no such header."""
    if value is None or not 0 < len(value) <= LONGEST:
        return NOBODY
    try:
        value.decode()
    except UnicodeDecodeError:
        return NOBODY
    return value


def limit_of(rules: ChannelRules) -> int | None:
    return 1 if rules.order is not None else rules.max_in_flight_per_group


class Stand(NamedTuple):
    """A group whose next message may go now."""

    first: int  # the sequence of its first waiting message
    ahead: int | None  # messages between the cursor and that one; None: the cursor has passed it
    is_cached: bool  # nothing has to be read from disk for it


@dataclass(slots=True)
class _Wait:
    """What others have got since a group waits for its turn."""

    last: float  # when somebody got something
    ahead: int  # messages that the cursor had to pass before its first one
    others: Counter[bytes] = field(default_factory=Counter)
    busy: float = 0.0  # seconds in which the channel has delivered


class Grouping:
    """`began` has to be called after each start, and when an operator or new rules have moved everything."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waits: dict[_Key, _Wait] = {}
        self._held: dict[tuple[str, str], int] = {}  # messages at the last look

    def began(self) -> None:
        self._waits.clear()
        self._held.clear()

    def look_at_held(self, topic: TopicModel, channel: ChannelModel, real: Channel) -> None:
        """Check that no more is held than may be; more may have been before a start or before the rules came."""
        place, held, most = (topic.name, channel.name), real.ledger.held.total, self._ledger.rules.max_held
        if most is not None and held > max(most, self._held.get(place, held)):
            raise Violation(f"{topic.name}/{channel.name}: {held} messages are held, {most} may")
        self._held[place] = held

    # Deliveries

    def delivered(
        self, topic: TopicModel, channel: ChannelModel, real: Channel, sequences: list[int], now: float
    ) -> None:
        """Check what was delivered in one turn; the ledger knows already."""
        members, rules = self._members(topic, channel), self._ledger.rules
        self._check_limit(topic, channel, "all groups", channel.owed, rules.max_in_flight, now)
        for sequence in sequences:
            group = self._group(topic, sequence)
            if group:
                self._check_limit(topic, channel, f"group {group!r}", members[group], limit_of(rules), now)
            if group and rules.order is not None and not is_ephemeral(channel.name):
                for other in members[group]:
                    if other < sequence:
                        self._check_order(topic, channel, real, other, sequence)
        if not is_ephemeral(channel.name):
            self._note_waits(topic, channel, real, sequences, now)

    def _group(self, topic: TopicModel, sequence: int) -> bytes:
        published = self._ledger.published.get(topic.messages.get(sequence, b""))
        return published.group if published is not None else NOBODY

    def _members(self, topic: TopicModel, channel: ChannelModel) -> dict[bytes, list[int]]:
        """Return the unfinished messages of each group that the topic has handed over, in the order of the log."""
        found: dict[bytes, list[int]] = defaultdict(list)
        for sequence in sorted(channel.owed):
            if sequence < topic.high_watermark and sequence not in topic.vague:
                found[self._group(topic, sequence)].append(sequence)
        return found

    def _check_limit(
        self,
        topic: TopicModel,
        channel: ChannelModel,
        what: str,
        members: Iterable[int],
        limit: int | None,
        now: float,
    ) -> None:
        flying = [sequence for sequence in members if now < channel.owed[sequence].held_until]
        if limit is not None and len(flying) > limit:
            raise Violation(f"{topic.name}/{channel.name}: {flying} of {what} are in flight, {limit} may")

    def _check_order(
        self, topic: TopicModel, channel: ChannelModel, real: Channel, earlier: int, sequence: int
    ) -> None:
        owed, published = channel.owed[earlier], self._ledger.published[topic.messages[earlier]]
        if not owed.holds_up:
            if earlier in real.ledger.deferred:
                return  # that it is not too long there is checked elsewhere
            if owed.is_new and not published.delay and self._ledger.is_too_old(published, real.turn.timestamp):
                return
            is_back = not owed.is_new or bool(published.delay)
            if is_back and earlier < real.feed.log.cached_from:
                return
        raise Violation(
            f"{topic.name}/{channel.name}: {sequence} is delivered before {earlier}, which is of the same group: {owed}"
        )

    # Whose turn it is

    def _note_waits(
        self, topic: TopicModel, channel: ChannelModel, real: Channel, sequences: list[int], now: float
    ) -> None:
        groups = Counter(self._group(topic, sequence) for sequence in sequences)
        before = {key[2]: key for key in self._waits if key[:2] == (topic.name, channel.name)}
        ready = self.ready(topic, channel, real) if self._ledger.rules.has_groups else {}
        for group, key in before.items():
            if group in groups or group not in ready:
                del self._waits[key]
        for group, stand in ready.items():
            key = (topic.name, channel.name, group)
            if (wait := self._waits.get(key)) is not None:
                wait.others += groups
                wait.busy += min(now - wait.last, _LONGEST_PAUSE)
                wait.last = now
                self._check_wait(key, wait, stand)
            else:
                self._waits[key] = _Wait(now, stand.ahead or 0)

    def _check_wait(self, key: _Key, wait: _Wait, stand: Stand) -> None:
        if not stand.is_cached and wait.busy < _READING:
            return
        rules = self._ledger.rules
        weights = {name.encode(): weight for name, weight in rules.weights}
        # A group that comes for the first time begins one round behind, and one that waits keeps up to one round.
        turns = {group: PATIENCE * (2 * weights.get(group, 1) + 2) for group in wait.others}
        if rules.share is not None:
            too_many = {group: count for group, count in wait.others.items() if count > turns[group]}
        else:
            # The cursor gets every second message, and the groups that it has left behind get the others.
            most = 2 * wait.ahead + (2 * sum(turns.values()) if stand.ahead is None else 0) + _SLACK * PATIENCE
            too_many = wait.others if wait.others.total() > most else {}
        if too_many:
            raise Violation(
                f"{key[0]}/{key[1]}: group {key[2]!r} waits with {stand.first}, and others got {dict(too_many)}, "
                f"with weights {dict(rules.weights)}, {wait.ahead} ahead"
            )

    def ready(self, topic: TopicModel, channel: ChannelModel, real: Channel) -> dict[bytes, Stand]:
        """Return the groups that have a message which may go now."""
        rules, ledger = self._ledger.rules, real.ledger
        limit, cached_from = limit_of(rules), real.feed.log.cached_from
        flying = {sequence for sequence, _ in real.in_flight.positions()}
        deferred = {sequence for _, sequence, _ in ledger.deferred}
        found: dict[bytes, Stand] = {}
        if rules.max_in_flight is not None and len(flying) >= rules.max_in_flight:
            return found
        for group, members in self._members(topic, channel).items():
            if group and limit is not None and sum(it in flying for it in members) >= limit:
                continue
            waiting = [it for it in members if it not in flying and it not in deferred]
            waiting = [it for it in waiting if self._may_go(topic, channel.owed[it], it, real)]
            if not waiting:
                continue
            first, ahead = waiting[0], None
            if first >= ledger.cursor:
                ahead = sum(ledger.cursor <= it < first for it in channel.owed)
                if rules.max_held is not None and ledger.held.total + ahead >= rules.max_held:
                    continue  # the cursor has to wait before it comes to that message
            if group and rules.order is not None and self._is_held_up(channel, first, members, deferred):
                continue
            found[group] = Stand(first, ahead, min(first, ledger.oldest_ahead) >= cached_from)
        return found

    def _may_go(self, topic: TopicModel, owed: Owed, sequence: int, real: Channel) -> bool:
        most, published = self._ledger.rules.max_attempts, self._ledger.published[topic.messages[sequence]]
        if most is not None and owed.attempts >= most:
            return False  # it is going to be buried
        return not (owed.is_new and self._ledger.is_too_old(published, real.turn.timestamp))

    def _is_held_up(self, channel: ChannelModel, first: int, members: Iterable[int], deferred: set[int]) -> bool:
        return any(it < first and it in deferred and channel.owed[it].holds_up for it in members)
