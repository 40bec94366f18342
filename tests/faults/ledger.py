"""Everything that has to be true of a broker whatever happens to it, computed from what its clients saw.

Messages are known by their bodies, which are all different, and, as long as their log exists, by their sequences. Every
action of a client or operator gets a number. `written` and `synced` say up to which number the actions have to survive
a kill, or a power cut. After a crash `reconcile` compares what has to be there, and what may be there, with what is
there, and continues from that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, NamedTuple

from common.wire.names import is_ephemeral
from nsqd.broker.broker import Broker
from nsqd.broker.burials import Selection, Verb
from nsqd.broker.buried import Burial
from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic
from nsqd.log.record import decode_batch, decode_header
from nsqd.log.segment import Walk
from nsqd.log.topic_log import DiskLog
from tests.faults.burying import BuriedModel, JobModel
from tests.faults.disk import Crash, SimulatedDisk
from tests.faults.promise import Marks, Violation

ROUNDING: Final = 0.0011  # seconds; due times are kept in whole milliseconds


@dataclass(slots=True)
class Published:
    """A message from the moment it was sent, whatever happened to it."""

    topic: str
    at: float  # true time
    delay: float
    forward: float  # the most that the wall clock had been set forward by then
    has_sure_id: bool = True


@dataclass(slots=True)
class Due:
    at: float  # true time
    forward: float
    number: int
    is_publication: bool  # the batch in the log has the delay, too, not only the journal
    outlived: bool = False  # nsqd was restarted since: wall time counts


class Known(NamedTuple):
    """How many attempts a message had after an action."""

    attempts: int
    number: int
    lazily: bool  # the journal may record it later


@dataclass(slots=True)
class Owed:
    """A message that a channel has to deliver."""

    attempts: int = 0
    history: list[Known] = field(default_factory=list)
    due: Due | None = None
    held_until: float = -inf  # in flight until this true time
    since: int = 0  # the number of the seek, restore or redelivery that made it due again; 0: none
    kicked: int = 0  # the number of the kick that made its attempts begin anew; 0: none

    def note_attempts(self, attempts: int, number: int, *, lazily: bool) -> None:
        self.attempts = attempts
        self.history.append(Known(attempts, number, lazily))


class Gone(NamedTuple):
    number: int
    owed: Owed
    lazily: bool  # finished by FIN, which the journal may record later


@dataclass(slots=True)
class ChannelModel:
    name: str
    created: int
    paused: bool = False
    paused_since: int = 0
    sought: int = 0  # the number of its last seek or restore
    owed: dict[int, Owed] = field(default_factory=dict)
    gone: dict[int, Gone] = field(default_factory=dict)
    buried: BuriedModel = field(default_factory=BuriedModel)
    before_burial: dict[int, Owed] = field(default_factory=dict)  # what was owed of each message that is buried


@dataclass(slots=True)
class TopicModel:
    name: str
    log_id: str
    ack: str
    created: int
    paused: bool = False
    paused_since: int = 0
    first: int = 0
    tail: int = 0
    handed_over: int = 0
    messages: dict[int, bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    written_tail: int = 0
    synced_tail: int = 0  # the highest end that a reader ever saw
    has_identity: bool = True  # on disk
    vague: set[int] = field(default_factory=set)  # unreadable, or lost by a disk that failed
    channels: dict[str, ChannelModel] = field(default_factory=dict)
    unparked: set[int] = field(default_factory=set)  # waiting behind H; their delay began with their publication
    deleted_channels: dict[str, tuple[int, ChannelModel]] = field(default_factory=dict)

    @property
    def flowing(self) -> bool:
        return bool(self.channels) and not self.paused


class Ledger:
    """`may_drop` has topics whose own retention also drops messages that wait for a first channel."""

    def __init__(self, may_drop: Collection[str] = ()) -> None:
        self.may_drop = may_drop
        self.most_attempts: int | None = None  # what the policy allows
        self.number = 0
        self.written = self.synced = Marks(0, 0)
        self.topics: dict[str, TopicModel] = {}
        self.published: dict[bytes, Published] = {}
        self.ids: dict[bytes, bytes] = {}
        self.seen: dict[str, dict[int, bytes]] = {}  # by log id, the messages that readers of history saw
        self.delivered = self.redelivered = self.acknowledged = 0
        self._deleted: dict[str, list[tuple[int, TopicModel]]] = {}
        self._begun: set[str] = set()
        # topology.json could not be written after a change: with a damaged journal, a deleted channel may
        # come back, and read its topic again.
        self.second_place_is_old = False
        # A failed sync of the journal may have lost entries about messages that wait behind H, which were not written
        # again yet: their delay counts from their publication.
        self.journal_has_lost = False

    def _next(self) -> int:
        self.number += 1
        return self.number

    # Topics and channels

    def topic_begun(self, name: str) -> None:
        """Note that a topic is being made. If the machine stops now, it may exist or not."""
        self._begun.add(name)

    def topic_created(self, name: str, log: DiskLog, ack: str) -> TopicModel:
        topic = self.topics[name] = TopicModel(name, log.log_id, ack, self._next())
        return topic

    def topic_deleted(self, topic: TopicModel) -> None:
        del self.topics[topic.name]
        self._deleted.setdefault(topic.name, []).append((self._next(), topic))

    def channel_created(
        self, topic: TopicModel, name: str, now: float, forward: float, *, cursor: int | None = None
    ) -> None:
        number = self._next()
        was_flowing = topic.flowing
        channel = topic.channels[name] = ChannelModel(name, number)
        for sequence in range(topic.handed_over, topic.tail):
            channel.owed[sequence] = Owed()
        for sequence in range(topic.handed_over if cursor is None else cursor, topic.handed_over):
            channel.owed[sequence] = Owed(since=number, due=self.due_by_publication(topic, sequence))
        if topic.flowing and not was_flowing:
            self._start_flowing(topic, now, forward)

    def channel_deleted(self, topic: TopicModel, name: str) -> None:
        topic.deleted_channels[name] = self._next(), topic.channels.pop(name)

    def pause_topic(self, topic: TopicModel, paused: bool, now: float, forward: float) -> None:
        if topic.paused == paused:
            return
        topic.paused, topic.paused_since = paused, self._next()
        if topic.flowing:
            self._start_flowing(topic, now, forward)

    def pause_channel(self, channel: ChannelModel, paused: bool) -> None:
        channel.paused, channel.paused_since = paused, self._next()

    def empty_topic(self, topic: TopicModel) -> None:
        number = self._next()
        for channel in topic.channels.values():
            for sequence in range(topic.handed_over, topic.tail):
                if (owed := channel.owed.pop(sequence, None)) is not None:
                    channel.gone[sequence] = Gone(number, owed, False)
        topic.handed_over = topic.tail

    def empty_channel(self, topic: TopicModel, channel: ChannelModel) -> None:
        number = self._next()
        for sequence in [sequence for sequence in channel.owed if sequence < topic.handed_over]:
            channel.gone[sequence] = Gone(number, channel.owed.pop(sequence), False)

    def channel_sought(self, topic: TopicModel, channel: ChannelModel, cursor: int) -> None:
        """Note a seek.

        The channel owes nothing before the cursor, and everything from there on, as if it had never been delivered.
        """
        number = channel.sought = self._next()
        before = channel.owed
        channel.owed = {s: owed for s, owed in before.items() if s >= topic.handed_over}
        for sequence in range(cursor, topic.handed_over):
            if sequence in channel.buried.held:
                continue
            since = before[sequence].since if sequence in before else number
            channel.owed[sequence] = Owed(since=since, due=self.due_by_publication(topic, sequence))
        for sequence in before.keys() - channel.owed.keys():
            channel.gone[sequence] = Gone(number, before[sequence], False)

    def channel_restored(self, channel: ChannelModel, restored: Mapping[int, Owed], end: int, held: set[int]) -> None:
        """Note that exactly these messages before `end` are owed, besides those that stay as they are (`held`)."""
        number = channel.sought = self._next()
        before = channel.owed
        channel.owed = {s: owed for s, owed in before.items() if s >= end or s in held}
        for sequence, owed in restored.items():
            if sequence not in channel.owed and sequence not in channel.buried.held:
                since = before[sequence].since if sequence in before else number
                history = [Known(owed.attempts, number, lazily=owed.attempts == 1)]
                channel.owed[sequence] = replace(owed, history=history, since=since)
        for sequence in before.keys() - channel.owed.keys():
            channel.gone[sequence] = Gone(number, before[sequence], False)

    def redelivery(self, channel: ChannelModel, sequences: Iterable[int]) -> None:
        number = self._next()
        channel.owed.update((sequence, Owed(since=number)) for sequence in sequences)

    def due_by_publication(self, topic: TopicModel, sequence: int) -> Due | None:
        """Return when a deferred message met in history is due, by the wall clock and its batch's time."""
        published = self.published.get(topic.messages.get(sequence, b""))
        if published is None or not published.delay:
            return None
        return Due(published.at + published.delay, published.forward, self.number, is_publication=True, outlived=True)

    def outdated(self, topic: TopicModel, handed_over: int) -> None:
        """Note that retention has dropped messages that waited for a first channel."""
        self._next()
        topic.handed_over = handed_over

    def _start_flowing(self, topic: TopicModel, now: float, forward: float) -> None:
        self._hand_over(topic, range(topic.handed_over, topic.tail), now, forward)

    def _hand_over(self, topic: TopicModel, sequences: Iterable[int], now: float, forward: float) -> None:
        for sequence in sequences:
            published = self.published.get(topic.messages.get(sequence, b""))
            if published is None or not published.delay:
                continue
            due = Due(now + published.delay, forward, self.number, is_publication=True)
            if sequence in topic.unparked:
                due = Due(published.at + published.delay, published.forward, self.number, True, outlived=True)
            for channel in topic.channels.values():
                if sequence in channel.owed:
                    channel.owed[sequence].due = replace(due)
        topic.handed_over = topic.tail

    # Messages

    def sent(self, body: bytes, published: Published) -> None:
        self.published[body] = published

    def appended(self, topic: TopicModel, bodies: list[bytes]) -> int:
        """Note that the log has these messages, acknowledged or not. Return the first one's sequence."""
        self._next()
        first = topic.tail
        seen = self.seen.get(topic.log_id, {})
        for sequence, body in enumerate(bodies, first):
            if sequence in seen:
                raise Violation(
                    f"{topic.name}: sequence {sequence} was shown as {seen[sequence]!r}, now it is {body!r}"
                )
            topic.messages[sequence] = body
            for channel in topic.channels.values():
                channel.owed[sequence] = Owed()
        topic.tail = first + len(bodies)
        return first

    def turn_over(self, topic: TopicModel, first: int, now: float, forward: float) -> None:
        if topic.flowing:
            self._hand_over(topic, range(min(first, topic.handed_over), topic.tail), now, forward)

    def was_acknowledged(self, topic: TopicModel, first: int, count: int) -> None:
        topic.acknowledged.update(range(first, first + count))
        self.acknowledged += count

    def was_delivered(
        self,
        topic: TopicModel,
        channel_name: str,
        message_id: bytes,
        body: bytes,
        attempts: int,
        *,
        now: float,
        forward: float,
        held_until: float,
    ) -> int:
        """Note a delivery, and return its sequence."""
        place = f"{topic.name}/{channel_name}: message {body[:12]!r}"
        other = self.ids.setdefault(message_id, body)
        if other != body and self.published[other].has_sure_id and self.published[body].has_sure_id:
            raise Violation(f"{place} has the id of message {self.ids[message_id]!r}")
        channel = topic.channels[channel_name]
        found = [sequence for sequence in channel.owed if topic.messages.get(sequence) == body]
        if len(found) != 1:
            raise Violation(f"{place} is delivered, but it is owed {len(found)} times")
        (sequence,) = found
        owed = channel.owed[sequence]
        if channel.paused or (sequence >= topic.handed_over):
            raise Violation(f"{place} is delivered during a pause")
        if now < owed.held_until:
            raise Violation(f"{place} is delivered while it is in flight")
        if owed.due is not None and now < self._earliest(owed.due, forward) - ROUNDING:
            raise Violation(f"{place} is delivered {owed.due.at - now:.3f} seconds early")
        if attempts != owed.attempts + 1:
            raise Violation(f"{place} is delivered with attempts {attempts} after {owed.attempts}")
        if self.most_attempts is not None and owed.attempts >= self.most_attempts:
            raise Violation(f"{place} is delivered with attempts {attempts}, {self.most_attempts} is the limit")
        owed.note_attempts(attempts, self._next(), lazily=attempts == 1)
        owed.held_until, owed.due = held_until, None
        self.delivered += 1
        self.redelivered += attempts > 1
        return sequence

    def _earliest(self, due: Due, forward: float) -> float:
        return due.at - (forward - due.forward) if due.outlived else due.at

    def finished(self, channel: ChannelModel, sequence: int) -> None:
        channel.gone[sequence] = Gone(self._next(), channel.owed.pop(sequence), True)

    def requeued(
        self, channel: ChannelModel, sequence: int, delay: float, now: float, forward: float, *, counts: bool = True
    ) -> None:
        owed = channel.owed[sequence]
        owed.held_until = -inf
        number = self._next()
        owed.due = Due(now + delay, forward, number, is_publication=False) if delay else None
        if not counts:
            owed.note_attempts(owed.attempts - 1, number, lazily=False)

    # Messages that fail

    def was_buried(self, channel: ChannelModel, burial: Burial) -> None:
        owed = channel.owed.pop(burial.sequence)
        if burial.attempts != owed.attempts:
            raise Violation(f"{channel.name}: {burial} has other attempts, {owed.attempts} is right")
        owed.held_until, owed.due = -inf, None
        channel.before_burial[burial.sequence] = owed
        channel.buried.add(burial, self._next())

    def was_taken(self, channel: ChannelModel, verb: Verb, sequence: int) -> None:
        """Note that a buried message was kicked or discarded."""
        number, owed = self._next(), channel.before_burial.pop(sequence)
        channel.buried.remove(sequence, number)
        if verb == "kick":
            channel.owed[sequence] = Owed(since=owed.since, kicked=number)
        else:
            channel.gone[sequence] = Gone(number, owed, False)

    def job_begun(self, channel: ChannelModel, verb: Verb, selection: Selection) -> None:
        channel.buried.job = JobModel(verb, selection, self._next())

    def job_stopped(self, channel: ChannelModel) -> None:
        channel.buried.stop_job(self._next())

    def observe_burials(self, topic: TopicModel, channel: ChannelModel, real: Channel, now: float) -> None:
        """Note what nobody has asked for in this turn: messages that a policy has buried, or that a job has taken."""
        place, found = f"{topic.name}/{channel.name}", real.burials.buried
        for burial in found.from_place(0):
            if burial.sequence in channel.buried.held:
                continue
            owed = channel.owed.get(burial.sequence)
            if owed is None or self.most_attempts is None or owed.attempts < self.most_attempts:
                raise Violation(f"{place}: {burial} is buried, and nobody knows why")
            if now < owed.held_until:
                raise Violation(f"{place}: {burial} is buried while it is in flight")
            self.was_buried(channel, burial)
        for sequence in [sequence for sequence in channel.buried.held if sequence not in found]:
            for verb in ("kick", "discard"):
                if channel.buried.job_takes(sequence, verb):
                    self.was_taken(channel, verb, sequence)
                    break
            else:
                raise Violation(f"{place}: message {sequence} was buried, and is not any more")
        if channel.buried.job is not None or real.burials.job is not None:
            channel.buried.check_job(real.burials.job, place, self._next())

    # What is on disk

    def observe(self, broker: Broker, waiting: int, *, written: bool) -> None:
        """Note, between two turns, what the journal has, and what each log has written and synced."""
        self.journal_has_lost = self.journal_has_lost and not written
        if waiting == 0 and written:
            self.written = Marks(self.number, self.written.lazy if broker.changed else self.number)
        for topic in self.topics.values():
            log = broker.topics[topic.name].log
            assert isinstance(log, DiskLog)
            self._observe_breakers(topic, broker.topics[topic.name])
            topic.first = max(topic.first, log.first)
            topic.has_identity = not log._fault.identity_is_unsaved
            if written:
                topic.written_tail = max(topic.written_tail, log._segments.tail)
            if log.synced_tail > topic.synced_tail:
                seen = self.seen.setdefault(log.log_id, {})
                for sequence in range(topic.synced_tail, log.synced_tail):
                    if sequence in topic.messages and sequence not in topic.vague:
                        seen[sequence] = topic.messages[sequence]
                topic.synced_tail = log.synced_tail

    def _observe_breakers(self, topic: TopicModel, real: Topic) -> None:
        """Note channels that have paused themselves, which may happen in the middle of a turn with deliveries."""
        for name, channel in topic.channels.items():
            if not is_ephemeral(name) and real.channels[name].paused_why and not channel.paused:
                self.pause_channel(channel, True)

    def forget_ids(self) -> None:
        """Forget these ids, which could not be reserved, so they may come again."""
        for published in self.published.values():
            published.has_sure_id = False

    def sync_failed(self, *, lost_pages: bool) -> None:
        """Note that a sync failed: whatever was written and not synced may be lost."""
        if not lost_pages:
            return
        self.written = self.synced
        self.journal_has_lost = True
        for topic in self.topics.values():
            topic.vague.update(range(topic.synced_tail, topic.tail))
            topic.written_tail = topic.synced_tail

    # Comparing while it lives

    def check(self, broker: Broker) -> None:
        for topic in self.topics.values():
            real = broker.topics[topic.name]
            if topic.tail != real.log.tail:
                raise Violation(f"{topic.name}: the log ends at {real.log.tail}, {topic.tail} is right")
            if set(topic.channels) != set(real.channels):
                raise Violation(f"{topic.name}: channels {sorted(real.channels)} for {sorted(topic.channels)}")
            if topic.handed_over != real.handed_over:
                raise Violation(f"{topic.name}: handed over to {real.handed_over}, {topic.handed_over} is right")
            for name, channel in topic.channels.items():
                if not is_ephemeral(name):
                    self._check_channel(topic, channel, real.channels[name])

    def _check_channel(self, topic: TopicModel, channel: ChannelModel, real: Channel) -> None:
        places = dict(_places(topic.name, real))
        owed = {sequence for sequence in channel.owed if sequence < topic.handed_over}
        wrong = (owed ^ places.keys()) - topic.vague
        if wrong:
            raise Violation(
                f"{topic.name}/{channel.name}: owes {sorted(owed - topic.vague)}, has {sorted(places)}: differ in {sorted(wrong)}"
            )
        buried = [burial.sequence for burial in real.burials.buried.from_place(0)]
        wrong = (channel.buried.held.keys() ^ set(buried)) - topic.vague
        if wrong or len(buried) != len(real.burials.buried):
            held = sorted(channel.buried.held)
            raise Violation(f"{topic.name}/{channel.name}: buried are {buried}, {held} is right: {sorted(wrong)}")
        for sequence in set(buried) - topic.vague:
            if real.topic.log.next_readable(sequence) != sequence or real.low_water() > sequence:
                raise Violation(f"{topic.name}/{channel.name}: message {sequence} is buried, and may go with the log")
        if real.alarm > real.burials.next_step:
            raise Violation(f"{topic.name}/{channel.name}: nobody is going to do the next step of the job")
        counted = real.depth + len(real.in_flight) + len(real.deferred)
        if counted != len(places):
            raise Violation(f"{topic.name}/{channel.name}: counts {counted}, has {len(places)}")

    def unfinished(self) -> int:
        """Return how many messages still have to be delivered and finished on durable channels."""
        return sum(
            len(channel.owed.keys() - topic.vague)
            for topic in self.topics.values()
            for channel in topic.channels.values()
            if not is_ephemeral(channel.name)
        )

    # Comparing after a restart

    def reconcile(
        self, broker: Broker, disk: SimulatedDisk, crash: Crash, *, synced: bool, doubts: Mapping[str, int]
    ) -> None:
        """Compare after a restart. `synced`: the start has synced what it found.

        `doubts`: for each topic, the sequence from which nsqd has reported to read it again.
        """
        marks = self.synced if crash.is_power_cut else self.written
        number = self._next()
        for name in [*self.topics, *self._deleted]:
            if name not in broker.topics:
                self._may_be_missing(name, marks, crash)
        for name, real in broker.topics.items():
            topic = self._candidate(name, real, marks, crash)
            _Comparison(self, topic, real, marks, crash, doubts.get(name, inf)).run(disk)
            topic.created = number
            self.topics[name] = topic
        self._deleted.clear()
        self._begun.clear()
        for topic in self.topics.values():
            topic.deleted_channels.clear()
        self.written = Marks(number, number)
        self.synced = self.written if synced else Marks(number - 1, number - 1)

    def _may_be_missing(self, name: str, marks: Marks, crash: Crash) -> None:
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        if topic.created <= marks.urgent:
            raise Violation(f"topic {name} is lost")
        if lost := required(topic, crash):
            raise Violation(f"topic {name} is lost with messages {sorted(lost)}")

    def _candidate(self, name: str, real: Topic, marks: Marks, crash: Crash) -> TopicModel:
        """Return which of the topics of this name the found one is."""
        assert isinstance(real.log, DiskLog)
        current = self.topics.get(name)
        deletions = [(number, topic) for number, topic in self._deleted.get(name, ()) if number > marks.urgent]
        deleted = [topic for _, topic in deletions]
        if current is not None and current.log_id == real.log.log_id:
            # The journal may have lost the deletion of the log before. Then its channels go on with this log.
            for number, topic in deletions:
                for channel in topic.channels:
                    current.deleted_channels.setdefault(channel, (number, ChannelModel(channel, 0)))
            return current
        if current is not None and not current.has_identity:
            current.log_id = real.log.log_id
            return current
        if current is not None and (lost := required(current, crash)):
            raise Violation(f"topic {name} has a new log id, and had messages {sorted(lost)}")
        for topic in deleted:
            if topic.log_id == real.log.log_id:
                if current is not None and current.created <= marks.urgent:
                    raise Violation(f"topic {name} is the one that was deleted")
                return topic
        if current is None and not deleted and name in self._begun:
            return TopicModel(name, real.log.log_id, "memory", self.number)
        if current is None and not deleted:
            raise Violation(f"topic {name} was deleted and came back")
        topic = _of_channels(real, [*([current] if current is not None else []), *deleted[::-1]])
        topic.log_id = real.log.log_id
        topic.synced_tail = topic.written_tail = 0
        topic.messages.clear()
        topic.acknowledged.clear()  # deleted with the log, as the operator asked
        return topic


def _of_channels(real: Topic, candidates: list[TopicModel]) -> TopicModel:
    """Return the first of these topics that had the channels found now, when none of their logs is there.

    A deletion may have reached the disk only as the folder's new name, without anything that was made after it.
    """
    names = {name for name in real.channels if not is_ephemeral(name)}
    for topic in candidates:
        if names <= topic.channels.keys() | topic.deleted_channels.keys():
            return topic
    return candidates[0]


def required(topic: TopicModel, crash: Crash) -> set[int]:
    """Return the messages that this crash must not lose."""
    if crash.is_power_cut:
        needed = {s for s in topic.messages if s < topic.synced_tail}
        return (needed | topic.acknowledged if topic.ack == "synced" else needed) - topic.vague
    needed = {s for s in topic.messages if s < topic.written_tail}
    return (needed | topic.acknowledged if topic.ack != "memory" else needed) - topic.vague


class _Comparison:
    """The comparison of one topic after a restart."""

    def __init__(
        self, ledger: Ledger, topic: TopicModel, real: Topic, marks: Marks, crash: Crash, doubted: float
    ) -> None:
        self.ledger = ledger
        self.topic = topic
        self.real = real
        self.marks = marks
        self.crash = crash
        self.doubted = doubted  # because of damage in the journal, everything from here on is redelivered
        self.before = {s: body for s, body in topic.messages.items() if s not in topic.vague}
        self.was_vague = topic.vague
        self.needed = required(topic, crash)

    def run(self, disk: SimulatedDisk) -> None:
        topic, real = self.topic, self.real
        assert isinstance(real.log, DiskLog)
        first, tail = real.log.first, real.log.tail
        found = contents_of(disk, real.log)
        self._compare_messages(found, first, tail)
        had_channels = [c for c in topic.channels.values() if not is_ephemeral(c.name)]
        self._compare_channels(first)
        if not topic.channels:
            self._compare_backlog(had_channels)
        if topic.paused != real.paused:
            if max(topic.paused_since, topic.created) <= self.marks.urgent:
                raise Violation(f"{topic.name}: the pause is {real.paused}")
            topic.paused = real.paused
        topic.paused_since = self.ledger.number
        topic.tail, topic.handed_over = tail, real.handed_over
        self._find_unparked()
        topic.acknowledged &= found.keys()
        topic.written_tail, topic.synced_tail = tail, real.log.synced_tail

    def _find_unparked(self) -> None:
        topic = self.topic
        parked = {s for start, count, _ in self.real._parked for s in range(start, start + count)}
        behind = range(topic.handed_over, topic.tail)
        delayed = {s for s in behind if s in topic.messages and self.ledger.published[topic.messages[s]].delay}
        before, topic.unparked = topic.unparked, delayed - parked
        # The record of a refused message may be complete, if it could not be taken back; nobody got an OK for it.
        new = (topic.unparked - before) & topic.acknowledged
        if new and not (self.crash.is_power_cut or self.ledger.journal_has_lost):
            raise Violation(f"{topic.name}: {sorted(new)} are deferred, and nobody knows")

    def _compare_messages(self, found: dict[int, bytes], first: int, tail: int) -> None:
        topic, ledger = self.topic, self.ledger
        seen = ledger.seen.setdefault(topic.log_id, {})
        first = max(first, topic.first)  # an old segment may be there again, without the one behind it
        for sequence in sorted(s for s in self.needed | seen.keys() if s >= first):
            expected = seen.get(sequence, topic.messages.get(sequence))
            if found.get(sequence) != expected:
                text = f"{_short(expected)} is lost, there is {_short(found.get(sequence))}"
                raise Violation(f"{topic.name}: message {sequence} {text}; the log is [{first}, {tail})")
        for sequence, body in found.items():
            if body not in ledger.published or ledger.published[body].topic != topic.name:
                raise Violation(f"{topic.name}: message {sequence} is {_short(body)}, which was never sent to it")
        topic.messages = dict(found)
        topic.vague = set(range(tail)) - found.keys()
        assert isinstance(self.real.log, DiskLog)
        seen.update((s, body) for s, body in found.items() if s < self.real.log.synced_tail)

    def _compare_channels(self, first: int) -> None:
        topic, real, marks = self.topic, self.real, self.marks
        for name, channel in list(topic.channels.items()):
            if name not in real.channels:
                if channel.created <= marks.urgent and not is_ephemeral(name):
                    raise Violation(f"{topic.name}: channel {name} is lost")
                del topic.channels[name]
        for name, found in real.channels.items():
            if name not in topic.channels:
                number, deleted = topic.deleted_channels.get(name, (0, None))
                if number <= marks.urgent and not self.ledger.second_place_is_old:
                    raise Violation(f"{topic.name}: channel {name} was deleted and came back")
                channel = topic.channels[name] = deleted or ChannelModel(name, 0)
                channel.created = marks.urgent + 1  # it also gets what was published since
            self._compare_channel(topic.channels[name], found, first)

    def _compare_channel(self, channel: ChannelModel, found: Channel, first: int) -> None:
        topic, real = self.topic, self.real
        place = f"{topic.name}/{channel.name}"
        places = dict(_places(topic.name, found))
        places.update((sequence, 0) for sequence in range(real.handed_over, real.log.tail))
        buried = {burial.sequence: burial for burial in found.burials.buried.from_place(0)}
        for sequence, owed in [*channel.owed.items(), *channel.before_burial.items()]:
            if owed.since > self.marks.urgent or channel.buried.job_takes(sequence, "discard"):
                continue  # the seek may be lost
            if self._survived(sequence) and sequence not in places and sequence not in buried:
                raise Violation(f"{place}: message {sequence} was not finished, and will not be delivered")
            if sequence in self.needed and sequence < first and sequence not in topic.messages:
                raise Violation(f"{place}: message {sequence} was not finished, and its segment is gone")
        self._compare_buried(channel, buried, place)
        self._compare_what_came_back(channel, places.keys(), place)
        if channel.paused != found.paused:
            is_by_policy = bool(found.paused_why)  # in a turn that has not ended
            if max(channel.paused_since, channel.created) <= self.marks.urgent and not is_by_policy:
                raise Violation(f"{place}: the pause is {found.paused}")
            channel.paused = found.paused
        channel.owed = {
            sequence: self._owed(channel, sequence, attempts, place) for sequence, attempts in places.items()
        }
        number = self.ledger.number
        channel.gone = {
            sequence: gone._replace(number=number)
            for sequence, gone in channel.gone.items()
            if sequence not in places and sequence not in buried and sequence in topic.messages
        }
        channel.before_burial = {
            sequence: Owed(burial.attempts, [Known(burial.attempts, number, lazily=False)])
            for sequence, burial in buried.items()
        }
        is_known = channel.created <= self.marks.urgent
        marks, synced = (self.marks, self.ledger.synced) if is_known else (Marks(-1, -1), Marks(-1, -1))
        channel.buried.adopt(
            [*buried.values()], found.burials.job, place=place, marks=marks, synced=synced, number=number
        )
        channel.created = channel.paused_since = channel.sought = self.ledger.number

    def _survived(self, sequence: int) -> bool:
        return sequence in self.before and self.topic.messages.get(sequence) == self.before[sequence]

    def _compare_buried(self, channel: ChannelModel, buried: dict[int, Burial], place: str) -> None:
        if channel.created > self.marks.urgent:
            return  # only topology.json may have it, or an earlier channel of this name
        for sequence in channel.buried.wrong(buried, self.marks, self.ledger.most_attempts):
            if self._survived(sequence):
                possible = channel.buried.possible(sequence, self.marks)
                raise Violation(f"{place}: message {sequence} is {buried.get(sequence)}, {possible} is right")
        for sequence in buried:
            if not self._survived(sequence) and sequence not in self.was_vague and sequence in self.topic.messages:
                raise Violation(f"{place}: message {sequence} is new, and is buried: {buried[sequence]}")

    def _compare_what_came_back(self, channel: ChannelModel, places: Collection[int], place: str) -> None:
        topic, marks = self.topic, self.marks
        if channel.created > marks.urgent:
            return  # only topology.json may have it, or an earlier channel of this name
        for sequence in places:
            is_new = sequence not in self.before or topic.messages.get(sequence) != self.before[sequence]
            if sequence in channel.owed or is_new or sequence >= self.doubted:
                continue
            if sequence in channel.before_burial:
                continue
            gone = channel.gone.get(sequence)
            if gone is None:
                raise Violation(f"{place}: message {sequence} came before the channel, and will be delivered")
            if gone.number <= (marks.lazy if gone.lazily else marks.urgent):
                raise Violation(
                    f"{place}: message {sequence} was {'finished' if gone.lazily else 'emptied'}, and is back"
                )

    def _owed(self, channel: ChannelModel, sequence: int, attempts: int, place: str) -> Owed:
        body = self.topic.messages.get(sequence)
        if body is None or body != self.before.get(sequence):
            before = None
        elif sequence in channel.owed:
            before = channel.owed[sequence]
        elif sequence in channel.before_burial:
            is_kicked = channel.buried.job_takes(sequence, "kick")
            before = None if is_kicked else channel.before_burial[sequence]
        else:
            before = channel.gone[sequence].owed if sequence in channel.gone else None
        owed = Owed(attempts, [Known(attempts, self.ledger.number, lazily=attempts == 1)])
        if before is not None:
            if (
                max(channel.created, channel.sought, before.since, before.kicked) <= self.marks.urgent
            ):  # otherwise the earlier state may be back
                self._compare_attempts(before, attempts, place, sequence)
            owed.due = self._due_left(before, sequence) if channel.sought <= self.marks.urgent else None
        elif body is not None:
            owed.due = self.ledger.due_by_publication(self.topic, sequence)
        if owed.due is not None:
            owed.due.outlived = True
        return owed

    def _compare_attempts(self, before: Owed, attempts: int, place: str, sequence: int) -> None:
        possible = [0]  # what the journal knew last, and all that came later
        for known in before.history:
            is_known = known.number <= (self.marks.lazy if known.lazily else self.marks.urgent)
            possible = [known.attempts] if is_known else [*possible, known.attempts]
        if attempts > max(possible) + 1:  # the journal is written before the frames are sent
            raise Violation(f"{place}: message {sequence} has attempts {attempts}, it had {before.attempts}")
        is_read_again = attempts == 0 and sequence >= self.doubted
        if attempts < min(possible) and not is_read_again:
            raise Violation(f"{place}: message {sequence} has attempts {attempts}, the journal knew of {possible}")

    def _due_left(self, before: Owed, sequence: int) -> Due | None:
        due = before.due
        if due is None:
            return None
        if due.number <= self.marks.urgent:
            return due
        return self.ledger.due_by_publication(self.topic, sequence) if due.is_publication else None

    def _compare_backlog(self, had_channels: list[ChannelModel]) -> None:
        """Compare the messages that wait for a first channel."""
        topic, real = self.topic, self.real
        if topic.flowing or had_channels or topic.name in self.ledger.may_drop:
            return  # all of it went to ephemeral or deleted channels, or was too old
        lost = {s for s in self.needed if topic.handed_over <= s < real.handed_over}
        if lost:
            raise Violation(f"{topic.name}: {sorted(lost)} waited for a channel, and begin at {real.handed_over} now")


def _short(body: bytes | None) -> str:
    return "nothing" if body is None else repr(body[:12])


def _places(topic: str, channel: Channel) -> Iterator[tuple[int, int]]:
    """Return where each message of the channel is, and its attempts. Raise Violation if one is in two places."""
    found: dict[int, int] = {}
    skipped = {sequence for start, end in channel.skips for sequence in range(start, end)}
    ahead = [(s, 0) for s in range(channel.cursor, channel.topic.handed_over) if s not in skipped]
    deferred = [(sequence, attempts) for _, sequence, attempts in channel.deferred]
    for sequence, attempts in [*channel.in_flight.positions(), *channel.retries, *deferred, *ahead]:
        if sequence in found or sequence in channel.burials.buried:
            raise Violation(f"{topic}/{channel.name}: message {sequence} is in two places")
        found[sequence] = attempts
    return iter(found.items())


def contents_of(disk: SimulatedDisk, log: DiskLog) -> dict[int, bytes]:
    """Return every message that can be read, by sequence."""
    found: dict[int, bytes] = {}
    for file in log.reader.carried.files:
        data = disk.peek(file.path)
        for place in range(len(file)):
            position, _ = file.extent(place)
            header = decode_header(data, position)
            batch = decode_batch(header, data, position) if header is not None else None
            if batch is not None:
                found.update((s, batch.body(s)) for s in range(batch.base_sequence, batch.end_sequence))
    for segment in log._segments:
        data = disk.peek(segment.path)[: segment.size]

        def read(offset: int, size: int, data: bytes = data) -> bytes:
            return data[offset : offset + size]

        walk = Walk(
            read,
            offset=0,
            sequence=segment.base,
            end=segment.size,
            verify=True,
            next_base=None if segment is log._segments.active else log._segments.end_of(segment),
        )
        for block in walk.blocks():
            for position, header in block.headers:
                batch = decode_batch(header, block.data, position)
                if batch is not None:
                    found.update((s, batch.body(s)) for s in range(batch.base_sequence, batch.end_sequence))
    return found
