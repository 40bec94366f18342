"""The part of the ledger about what a policy does to messages: they expire, are too many, or have failed too often.

Nobody asks for any of this, so after each turn the ledger looks for messages that have left their place, and judges:

- Each of them was taken by a rule that holds. It had waited for longer than its time to live, or more messages waited
  than a bound allows, or it had its last attempt. Nothing in flight was taken, and never a later message before an
  earlier one.
- A bound takes only messages that nobody has had and nobody has asked for: those that wait for their first delivery, and
  deferred ones as they arrive. What was delivered, kicked, moved or redelivered stays, also at a start.
- A bound takes what is too much, and not one message more.
- The broker has counted each of them, once, by its cause.

When nsqd ends in the middle of a turn, the ledger looks one last time. What it finds then may or may not have reached
the disk. A start may drop messages as well, because what was in flight waits again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.broker import Broker
from nsqd.broker.buried import BuriedMessage
from nsqd.broker.channel import Channel
from nsqd.broker.limits import drops, excess, refuses
from nsqd.broker.rules import Overflow
from nsqd.broker.topic import Topic
from tests.simulation.contents import places_in
from tests.simulation.ledger import Ledger
from tests.simulation.models import ChannelModel, Gone, Owed, TopicModel
from tests.simulation.promise import Marks, Violation

EXPIRED: Final = "ttl, dropped"
EXPIRED_AND_BURIED: Final = "ttl, buried"
DROPPED: Final = "overflow, dropped"
TURNED_AWAY: Final = "full, dropped"
BURIED: Final = "overflow, buried"
EXHAUSTED: Final = "attempts"

_NOTHING: Final[Counter[str]] = Counter()  # looks are many, and most of them see this; nobody adds to it

Unsent = Callable[[TopicModel, str], int]  # how many messages were delivered in this channel, and not sent yet


def look(ledger: Ledger, broker: Broker, now: float, unsent: Unsent, *, is_last: bool = False) -> None:
    """Note what the broker has done since the last look. A topic or channel that it has deleted is left out.

    The last look comes after the process has ended, perhaps in the middle of what a rule does, and before it was
    counted.
    """
    for topic in ledger.topics.values():
        if (real := broker.topics.get(topic.name)) is not None:
            _Look(ledger, topic, real, broker.turn.timestamp, now, unsent, is_last).run()
    ledger.looked_at = ledger.number


class _Look:
    """A look at one topic."""

    def __init__(
        self,
        ledger: Ledger,
        topic: TopicModel,
        real: Topic,
        timestamp: int,
        now: float,
        unsent: Unsent,
        is_last: bool,
    ) -> None:
        self.ledger = ledger
        self.topic = topic
        self.real = real
        self.timestamp = timestamp
        self.now = now
        self.unsent = unsent
        self.is_last = is_last

    @property
    def is_vague(self) -> bool:
        """Whether something cannot be read any more, and may be dropped and counted wherever it was.

        If it was dropped since the last look, its file may have been removed as well.
        """
        return any(sequence >= self.topic.began_at for sequence in self.topic.vague)

    def run(self) -> None:
        counted = _since(self.real.policy_counts, self.topic.counted)
        if counted:
            self.topic.counted = dict(self.real.policy_counts)
            self.ledger.by_policy.update(counted)
        passed = 0
        if self.topic.channels or self.topic.name not in self.ledger.may_drop:  # otherwise retention drops, too
            passed = self._passed_over()
            self._compare_counts(self.topic.name, passed, counted[DROPPED])
        for name, channel in self.topic.channels.items():
            if not is_ephemeral(name) and name in self.real.channels:
                self._look_at(channel, self.real.channels[name], passed)
        self.topic.began_at = self.real.log.first

    def _compare_counts(self, what: str, taken: int, counted: int) -> None:
        if not self.is_last and (taken > counted or (taken < counted and not self.is_vague)):
            raise Violation(f"{what}: the policy has taken {taken} messages, and {counted} were counted")

    # The topic's bound

    def _passed_over(self) -> int:
        """Return how many messages the topic's bound has dropped before a channel got them."""
        topic, before, end = self.topic, self.topic.high_watermark, self.real.high_watermark
        if topic.flowing or end <= before or not drops(self.ledger.topic_rules):
            return 0
        if self.is_last and self.real.flowing:
            return 0  # the process ended as its first channel came, and that got them
        if not self._is_beyond_the_topics_bound(end - 1):
            raise Violation(f"{topic.name}: messages to {end} are dropped, the log ends at {self.real.log.tail}")
        number, topic.high_watermark = self.ledger.next_number(), end
        for channel in topic.channels.values():
            for sequence in range(before, end):
                if (owed := channel.owed.pop(sequence, None)) is not None:
                    channel.gone[sequence] = Gone(number, owed, False)
        return end - before

    def _is_beyond_the_topics_bound(self, sequence: int) -> bool:
        rules = self.ledger.topic_rules
        if rules.max_messages is None or rules.max_bytes is not None:
            return drops(rules)  # a bound of bytes is an estimate
        return drops(rules) and sequence < self.real.log.tail - rules.max_messages

    # A channel

    def _look_at(self, channel: ChannelModel, found: Channel, passed: int) -> None:
        """Look at a channel of whose messages so many were dropped before it got them."""
        place = f"{self.topic.name}/{channel.name}"
        counted = _since(found.policy_counts, channel.counted)
        if counted:
            channel.counted = dict(found.policy_counts)
            self.ledger.by_policy.update(counted)
        buried = self._look_at_buried(channel, found)
        self.ledger.observe_job(self.topic, channel, found)
        if counted or buried:
            for cause in (BURIED, EXPIRED_AND_BURIED):
                self._compare_counts(f"{place}, {cause}", buried[cause], counted[cause])
        dropped, left = list[int](), passed
        overflown = counted[DROPPED] + counted[TURNED_AWAY]
        if counted[EXPIRED] or overflown or self.is_last:
            missing = self._missing(channel, found)
            if self.is_last:  # an operation may have been cut off as well, and is not in the ledger
                missing = [s for s in missing if self._may_be_taken(channel, s)]
            self._compare_counts(place, len(missing), counted[EXPIRED] + overflown)
            dropped = self._check_why(channel, missing, counted[EXPIRED], place)
            left += len(missing) - len(dropped)
            number = self.ledger.next_number()
            channel.gone |= {s: Gone(number, channel.owed.pop(s), lazily=True) for s in missing}
        if (dropped or buried[BURIED]) and not (self.is_last or self.is_vague):
            self._check_that_enough_stays(channel, found, left + buried[EXPIRED_AND_BURIED] + buried[EXHAUSTED], place)
        self._look_at_breaker(channel, found, place)

    def _look_at_buried(self, channel: ChannelModel, found: Channel) -> Counter[str]:
        """Return how many messages were buried since the last look, by cause."""
        if channel.bury_count == found.buried_queue.bury_count:
            return _NOTHING
        causes: Counter[str] = Counter()
        channel.bury_count = found.buried_queue.bury_count
        for burial in found.buried_queue.buried.from_place(0):
            held = channel.buried.held.get(burial.sequence)
            if held is not None and held != burial and channel.buried.job_takes(burial.sequence, "kick"):
                self.ledger.was_taken(channel, "kick", burial.sequence)
                held = None
            if held is None:
                cause = self._why_buried(channel, burial)
                causes[cause] += 1
                self.ledger.was_buried(channel, burial, self.now, has_failed=cause == EXHAUSTED)
        return causes

    def _why_buried(self, channel: ChannelModel, burial: BuriedMessage) -> str:
        rules, owed = self.ledger.rules, channel.owed.get(burial.sequence)
        place = f"{self.topic.name}/{channel.name}: {burial} is buried"
        if owed is None:
            raise Violation(f"{place}, and was not there")
        if self.now < owed.held_until:
            raise Violation(f"{place} while it is in flight")
        if burial.note.reason.endswith("(ttl)"):
            cause, is_right = EXPIRED_AND_BURIED, rules.ttl_buries and self._has_expired(burial.sequence, owed)
        elif burial.note.reason.endswith("(overflow)"):
            cause, is_right = BURIED, drops(rules) and rules.overflow is Overflow.BURY
            self._check_that_nobody_wants(owed, burial.sequence, place)
        else:
            cause = EXHAUSTED
            is_right = rules.max_attempts is not None and owed.attempts >= rules.max_attempts
        if not is_right:
            raise Violation(f"{place}, and no rule says so")
        return cause

    def _missing(self, channel: ChannelModel, found: Channel) -> list[int]:
        places, end = dict(places_in(self.topic.name, found)), min(self.topic.high_watermark, self.real.high_watermark)
        gone = [s for s in channel.owed if s < end and s not in places and s not in found.buried_queue.buried]
        return sorted(sequence for sequence in gone if sequence not in self.topic.vague)

    def _check_why(self, channel: ChannelModel, missing: list[int], expired: int, place: str) -> list[int]:
        """Return which of these messages only the channel's own bound may have dropped."""
        owed = channel.owed
        for sequence in missing:
            if self.now < owed[sequence].held_until:
                raise Violation(f"{place}: message {sequence} is dropped while it is in flight")
        old = {s for s in missing if self._may_expire(s, owed[s])}
        if expired > len(old) and not self.is_vague:
            raise Violation(f"{place}: {expired} messages have expired, only {sorted(old)} may")
        beyond = {s for s in missing if owed[s].is_new and self._is_beyond_the_topics_bound(s)}
        dropped = [s for s in missing if s not in old and s not in beyond]
        if dropped and not self._drops_oldest:
            raise Violation(f"{place}: messages {dropped} are gone, and no rule says so")
        for sequence in dropped:
            self._check_that_nobody_wants(owed[sequence], sequence, place)
        # Only a bound goes by age: when the wall clock was set, a later message may be the first one to expire.
        last = max((s for s in missing if s not in old and self._is_ahead(owed[s], s)), default=-1)
        first = min((s for s, it in owed.items() if s not in missing and self._is_ahead(it, s)), default=last)
        if first < last and not self.is_vague:
            raise Violation(f"{place}: message {last} is dropped, and not {first}, which is older")
        return dropped

    def _may_be_taken(self, channel: ChannelModel, sequence: int) -> bool:
        owed = channel.owed[sequence]
        is_beyond = owed.is_new and self._is_beyond_the_topics_bound(sequence)
        is_oldest = self._drops_oldest and self._is_wanted_by_nobody(owed)
        return self.now >= owed.held_until and (self._may_expire(sequence, owed) or is_beyond or is_oldest)

    def _is_wanted_by_nobody(self, owed: Owed) -> bool:
        """Return whether a bound may take a message: it waits for its first delivery, or was deferred just now."""
        due = owed.due
        return owed.is_new or (due is not None and due.is_publication and due.number > self.ledger.looked_at)

    def _check_that_nobody_wants(self, owed: Owed, sequence: int, place: str) -> None:
        if not self._is_wanted_by_nobody(owed):
            raise Violation(f"{place}: a bound takes message {sequence}, which somebody has had or asked for: {owed}")

    @property
    def _drops_oldest(self) -> bool:
        return drops(self.ledger.rules) and self.ledger.rules.overflow is Overflow.DROP_OLDEST

    def _may_expire(self, sequence: int, owed: Owed) -> bool:
        return not self.ledger.rules.ttl_buries and self._has_expired(sequence, owed)

    def _is_ahead(self, owed: Owed, sequence: int) -> bool:
        published = self.ledger.published.get(self.topic.messages.get(sequence, b""))
        return owed.is_new and published is not None and not published.delay

    def _has_expired(self, sequence: int, owed: Owed) -> bool:
        """Return whether a message, or one behind it, has waited too long by the wall clock.

        If that clock was set back meanwhile, a start takes the time of a segment's last message for the newest one.
        """
        bodies = [body for place, body in self.topic.messages.items() if place >= sequence]
        published = [self.ledger.published[body] for body in bodies]
        is_old = sequence not in self.topic.messages or any(
            self.ledger.is_too_old(it, self.timestamp) for it in published
        )
        return owed.is_new and is_old

    def _check_that_enough_stays(self, channel: ChannelModel, found: Channel, left: int, place: str) -> None:
        """Check that as many messages wait as the bound allows, with those that have left in another way since."""
        rules = self.ledger.rules
        held = found.usage().messages + left + self.unsent(self.topic, channel.name)
        if rules.max_bytes is None and rules.max_messages is not None and held < rules.max_messages:
            raise Violation(f"{place}: {held} messages wait after others were dropped, {rules.max_messages} may")

    # A channel that pauses itself

    def _look_at_breaker(self, channel: ChannelModel, found: Channel, place: str) -> None:
        """Note that the channel has paused itself; what it has delivered just before that has to be sent first."""
        rules, recent, why = self.ledger.rules, channel.recent, found.paused_why
        unsent = self.unsent(self.topic, channel.name) if why or not recent.is_judged else 0
        if why and not channel.paused and not unsent:
            most, share = rules.max_buried, rules.breaker
            is_full = most is not None and len(channel.buried.held) > most
            if not (is_full if "(max_buried)" in why else share is not None and recent.may_trip(share, self.now)):
                raise Violation(f"{place} pauses, and has no reason: {why}")
            self.ledger.pause_channel(channel, True)
        share = None if recent.is_judged or found.paused else rules.breaker
        recent.is_judged = True
        if share is not None and recent.must_trip(share, self.now, unsent):
            raise Violation(f"{place} goes on, although most deliveries were buried")


def check_bounds(ledger: Ledger, topic: TopicModel, real: Topic) -> None:
    """Check, after a turn in which the topic was given messages, that no more wait than its bounds allow.

    Channels that have very many skip ranges drop the rest in later turns.
    """
    if any(channel.is_behind for channel in real.channels.values()):
        return
    rules = ledger.topic_rules
    held, most = real.usage().messages, rules.max_messages
    if rules.max_bytes is None and drops(rules) and most is not None and held > most:
        raise Violation(f"{topic.name}: {held} messages wait, {most} may")
    for name in topic.channels:
        found = real.channels[name]
        if ledger.rules.max_bytes is not None or not drops(ledger.rules):
            continue  # a bound of bytes is an estimate
        if ledger.rules.overflow is Overflow.BURY and not is_ephemeral(name):
            continue  # what is buried has to be read first
        beyond = min(excess(ledger.rules, found.usage()), found.ledger.ahead)
        if beyond:
            raise Violation(f"{topic.name}/{name}: {found.usage()} wait, {beyond} messages too many")


class Admission:
    """Whether publishes are refused where a bound says so, and only there.

    nsqd measures how much waits once for all publishes of a turn, so what changes meanwhile may count or not.
    """

    def __init__(self) -> None:
        self._first: dict[str, dict[str, int]] = {}  # by topic: how many messages waited before the turn's publishes

    def turn_over(self) -> None:
        self._first.clear()

    def check(self, ledger: Ledger, real: Topic, count: int, drafted: int, *, refused: bool) -> None:
        """Check a publish of so many messages, after others in the same turn."""
        if ledger.topic_rules.max_bytes is not None or ledger.rules.max_bytes is not None:
            return  # a bound of bytes is an estimate
        now = _held(ledger, real)
        first = self._first.setdefault(real.name, now)
        wanted = {name: (first.get(name, held) + drafted + count, held + drafted + count) for name, held in now.items()}
        bounds = {name: ledger.rules.max_messages if name else ledger.topic_rules.max_messages for name in wanted}
        beyond = {name: [it > bound for it in wanted[name]] for name, bound in bounds.items() if bound is not None}
        if refused and not any(any(it) for it in beyond.values()):
            raise Violation(f"{real.name}: {count} messages are refused after {drafted}, and {now} wait")
        if not refused and any(all(it) for it in beyond.values()):
            raise Violation(f"{real.name}: {count} messages are taken after {drafted}, and {now} wait")


def _held(ledger: Ledger, real: Topic) -> dict[str, int]:
    """Return how many messages wait in each channel and, by the name "", in the topic, if a bound refuses more."""
    held = {"": real.usage().messages} if refuses(ledger.topic_rules) else {}
    if refuses(ledger.rules):
        held |= {name: channel.usage().messages for name, channel in real.channels.items()}
    return held


def dropped_by_start(real: Topic, found: Channel) -> int:
    """Return how many messages of a channel the start may have dropped, because more waited than the bounds allow."""
    of_channel, of_topic = found.policy_counts, real.policy_counts
    return of_channel.get(DROPPED, 0) + of_channel.get(TURNED_AWAY, 0) + of_topic.get(DROPPED, 0)


def is_known_to_be_wanted(owed: Owed, marks: Marks) -> bool:
    """Return whether the journal knows that somebody has had or asked for a message, so that a start may not drop it."""
    if owed.is_new:
        return False
    told = [(known.number, known.lazily) for known in owed.history]  # not `since`: what a seek made due again is new
    told += [(owed.kicked, False)] * bool(owed.kicked)
    return any(number <= (marks.lazy if lazily else marks.urgent) for number, lazily in told)


def _since(counts: Mapping[str, int], before: Mapping[str, int]) -> Counter[str]:
    if counts == before:
        return _NOTHING
    return Counter({cause: count - before.get(cause, 0) for cause, count in counts.items()})
