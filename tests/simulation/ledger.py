"""Everything that has to be true of a broker whatever happens to it, computed from what its clients saw.

Messages are known by their bodies, which are all different, and, as long as their log exists, by their sequences. Every
action of a client or operator gets a number. `written` and `synced` say up to which number the actions have to survive
a kill, or a power cut. After a crash `reconcile` compares what has to be there, and what may be there, with what is
there (`comparison.py`), and continues from that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import inf

from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.broker import Broker
from nsqd.broker.buried import BuriedMessage, BuriedMessages
from nsqd.broker.buried_queue import BuriedSelection, Verb
from nsqd.broker.channel import Channel
from nsqd.broker.limits import drops
from nsqd.broker.rules import NO_CHANNEL_RULES, NO_TOPIC_RULES, ChannelRules, TopicRules
from nsqd.log.topic_log import DiskLog
from tests.simulation.burying import JobModel
from tests.simulation.contents import places_in
from tests.simulation.models import ROUNDING, ChannelModel, Due, Gone, Known, Owed, Published, TopicModel
from tests.simulation.promise import Marks, Violation


class Ledger:
    """`may_drop` has topics whose own retention also drops messages that wait for a first channel."""

    def __init__(self, may_drop: Collection[str] = ()) -> None:
        self.may_drop = may_drop
        self.rules, self.topic_rules = NO_CHANNEL_RULES, NO_TOPIC_RULES  # the policy
        self.number = 0
        self.written = self.synced = Marks(0, 0)
        self.answered = 0  # up to this number an operator was told that it is on disk
        self.topics: dict[str, TopicModel] = {}
        self.published: dict[bytes, Published] = {}
        self.ids: dict[bytes, bytes] = {}
        self.seen: dict[str, dict[int, bytes]] = {}  # by log id, the messages that readers of history saw
        self.delivered = self.redelivered = self.acknowledged = 0
        self.looked_at = 0  # the number at the last look at what the policy has done
        self.by_policy: Counter[str] = Counter()  # by cause, what the policy has done to messages
        self.deleted: dict[str, list[tuple[int, TopicModel]]] = {}
        self.begun: set[str] = set()
        # topology.json could not be written after a change: with a damaged journal, a deleted channel may
        # come back, and read its topic again.
        self.second_place_is_old = False
        # A failed sync of the journal may have lost entries about messages that wait behind H, which were not written
        # again yet: their delay counts from their publication.
        self.journal_has_lost = False

    def next_number(self) -> int:
        self.number += 1
        return self.number

    # Topics and channels

    def topic_begun(self, name: str) -> None:
        """Note that a topic is being made. If the machine stops now, it may exist or not."""
        self.begun.add(name)

    def topic_created(self, name: str, log: DiskLog, ack: str) -> TopicModel:
        topic = self.topics[name] = TopicModel(name, log.log_id, ack, self.next_number())
        return topic

    def topic_deleted(self, topic: TopicModel) -> None:
        del self.topics[topic.name]
        self.deleted.setdefault(topic.name, []).append((self.next_number(), topic))

    def channel_created(
        self, topic: TopicModel, name: str, now: float, forward: float, *, cursor: int | None = None
    ) -> None:
        number = self.next_number()
        was_flowing = topic.flowing
        channel = topic.channels[name] = ChannelModel(name, number)
        for sequence in range(topic.high_watermark, topic.tail):
            if sequence not in topic.cancelled:
                channel.owed[sequence] = Owed()
        for sequence in range(topic.high_watermark if cursor is None else cursor, topic.high_watermark):
            channel.owed[sequence] = Owed(since=number, due=self.due_by_publication(topic, sequence))
        if topic.flowing and not was_flowing:
            self._start_flowing(topic, now, forward)

    def channel_deleted(self, topic: TopicModel, name: str) -> None:
        topic.deleted_channels[name] = self.next_number(), topic.channels.pop(name)

    def pause_topic(self, topic: TopicModel, paused: bool, now: float, forward: float) -> None:
        if topic.paused == paused:
            return
        topic.paused, topic.paused_since = paused, self.next_number()
        if topic.flowing:
            self._start_flowing(topic, now, forward)

    def pause_channel(self, channel: ChannelModel, paused: bool) -> None:
        channel.paused, channel.paused_since = paused, self.next_number()
        channel.recent.forget()

    def empty_topic(self, topic: TopicModel) -> None:
        number = self.next_number()
        for channel in topic.channels.values():
            for sequence in range(topic.high_watermark, topic.tail):
                if (owed := channel.owed.pop(sequence, None)) is not None:
                    channel.gone[sequence] = Gone(number, owed, False)
        topic.high_watermark = topic.tail

    def empty_channel(self, topic: TopicModel, channel: ChannelModel) -> None:
        number = self.next_number()
        for sequence in [sequence for sequence in channel.owed if sequence < topic.high_watermark]:
            channel.gone[sequence] = Gone(number, channel.owed.pop(sequence), False)

    def channel_sought(self, topic: TopicModel, channel: ChannelModel, cursor: int) -> None:
        """Note a seek.

        The channel owes nothing before the cursor, and everything from there on, as if it had never been delivered.
        """
        number = channel.sought = self.next_number()
        before = channel.owed
        channel.owed = {s: owed for s, owed in before.items() if s >= topic.high_watermark}
        for sequence in range(cursor, topic.high_watermark):
            if sequence in channel.buried.held:
                continue
            since = before[sequence].since if sequence in before else number
            channel.owed[sequence] = Owed(since=since, due=self.due_by_publication(topic, sequence))
        for sequence in before.keys() - channel.owed.keys():
            channel.gone[sequence] = Gone(number, before[sequence], False)

    def channel_restored(self, channel: ChannelModel, restored: Mapping[int, Owed], end: int, held: set[int]) -> None:
        """Note that exactly these messages before `end` are owed, besides those that stay as they are (`held`)."""
        number = channel.sought = self.next_number()
        before = channel.owed
        channel.owed = {s: owed for s, owed in before.items() if s >= end or s in held}
        for sequence in held & before.keys():
            before[sequence].is_new = False
        for sequence, owed in restored.items():
            if sequence not in channel.owed and sequence not in channel.buried.held:
                since = before[sequence].since if sequence in before else number
                history = [Known(owed.attempts, number, lazily=owed.attempts == 1)]
                channel.owed[sequence] = replace(owed, history=[] if owed.is_new else history, since=since)
        for sequence in before.keys() - channel.owed.keys():
            channel.gone[sequence] = Gone(number, before[sequence], False)

    def redelivery(self, channel: ChannelModel, sequences: Iterable[int]) -> None:
        number = self.next_number()
        for sequence in sequences:
            channel.owed[sequence] = Owed(0, [Known(0, number, lazily=False)], since=number, is_new=False)

    def due_by_publication(self, topic: TopicModel, sequence: int) -> Due | None:
        """Return when a deferred message met in history is due, by the wall clock and its batch's time."""
        published = self.published.get(topic.messages.get(sequence, b""))
        if published is None or not published.delay:
            return None
        return Due(published.at + published.delay, published.forward, self.number, is_publication=True, outlived=True)

    def outdated(self, topic: TopicModel, high_watermark: int) -> None:
        """Note that retention has dropped messages that waited for a first channel."""
        self.next_number()
        topic.high_watermark = high_watermark

    def _start_flowing(self, topic: TopicModel, now: float, forward: float) -> None:
        self._hand_over(topic, range(topic.high_watermark, topic.tail), now, forward)

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
                    channel.owed[sequence].is_new = sequence in topic.unparked
        topic.high_watermark = topic.tail

    # Messages

    def sent(self, body: bytes, published: Published) -> None:
        self.published[body] = published

    def appended(self, topic: TopicModel, bodies: list[bytes]) -> int:
        """Note that the log has these messages, acknowledged or not. Return the first one's sequence."""
        self.next_number()
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
            self._hand_over(topic, range(min(first, topic.high_watermark), topic.tail), now, forward)

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
        timestamp: int,
        held_until: float,
    ) -> int:
        """Note a delivery, and return its sequence. `timestamp`: wall time of the turn."""
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
        if channel.paused or (sequence >= topic.high_watermark):
            raise Violation(f"{place} is delivered during a pause")
        if now < owed.held_until:
            raise Violation(f"{place} is delivered while it is in flight")
        if owed.due is not None and now < self._earliest(owed.due, forward) - ROUNDING:
            raise Violation(f"{place} is delivered {owed.due.at - now:.3f} seconds early")
        if attempts != owed.attempts + 1:
            raise Violation(f"{place} is delivered with attempts {attempts} after {owed.attempts}")
        most, published = self.rules.max_attempts, self.published[body]
        if most is not None and owed.attempts >= most:
            raise Violation(f"{place} is delivered with attempts {attempts}, {most} is the limit")
        if owed.is_new and not published.delay and self.is_too_old(published, timestamp):
            raise Violation(f"{place} is delivered, though it has expired")
        may_drop = drops(self.rules) or drops(self.topic_rules)  # but not what was delivered
        is_lazy = attempts == 1 and not may_drop
        owed.note_attempts(attempts, self.next_number(), lazily=is_lazy)
        owed.held_until, owed.due, owed.is_new, owed.holds_up = held_until, None, False, True
        channel.recent.delivered.append(now)
        self.delivered += 1
        self.redelivered += attempts > 1
        return sequence

    def _earliest(self, due: Due, forward: float) -> float:
        return due.at - (forward - due.forward) if due.outlived else due.at

    def is_too_old(self, published: Published, timestamp: int) -> bool:
        """Return whether it has waited for longer than its time to live. A delay does not count as waiting."""
        waits_since = published.timestamp + int(published.delay * 1000) * 1_000_000
        return self.rules.ttl is not None and waits_since < timestamp - self.rules.ttl

    def finished(self, channel: ChannelModel, sequence: int) -> None:
        channel.gone[sequence] = Gone(self.next_number(), channel.owed.pop(sequence), True)

    def requeued(
        self, channel: ChannelModel, sequence: int, delay: float, now: float, forward: float, *, counts: bool = True
    ) -> None:
        owed = channel.owed[sequence]
        owed.held_until = -inf
        number = self.next_number()
        owed.due = Due(now + delay, forward, number, is_publication=False) if delay else None
        if not counts:
            owed.note_attempts(owed.attempts - 1, number, lazily=False)

    # Messages that are taken back

    def cancelled(self, channel: ChannelModel, sequences: Iterable[int]) -> None:
        number = self.next_number()
        for sequence in sequences:
            channel.gone[sequence] = Gone(number, channel.owed.pop(sequence), False)

    def cancelled_beyond(self, topic: TopicModel, sequences: Iterable[int]) -> None:
        """Note that messages which were not handed over yet never will be, to no channel."""
        number = self.next_number()
        for sequence in sequences:
            topic.cancelled[sequence] = number
            for channel in topic.channels.values():
                if (owed := channel.owed.pop(sequence, None)) is not None:
                    channel.gone[sequence] = Gone(number, owed, False)

    def moved(self, channel: ChannelModel, sequence: int, delay: float, now: float, forward: float) -> None:
        owed, number = channel.owed[sequence], self.next_number()
        owed.due = Due(now + delay, forward, number, is_publication=False) if delay else None
        if delay:  # otherwise a message that waits for its first delivery stays where it is
            owed.is_new = False

    # Messages that fail

    def rules_changed(self, rules: ChannelRules, topic_rules: TopicRules) -> None:
        if rules.breaker != self.rules.breaker:
            for topic in self.topics.values():
                for channel in topic.channels.values():
                    channel.recent.forget()
        self.rules, self.topic_rules = rules, topic_rules

    def was_buried(self, channel: ChannelModel, burial: BuriedMessage, now: float, *, has_failed: bool = True) -> None:
        owed = channel.owed.pop(burial.sequence)
        if burial.attempts != owed.attempts:
            raise Violation(f"{channel.name}: {burial} has other attempts, {owed.attempts} is right")
        owed.held_until, owed.due = -inf, None
        channel.before_burial[burial.sequence] = owed
        channel.buried.add(burial, self.next_number())
        if has_failed:
            channel.recent.note_burial(now)

    def was_taken(self, channel: ChannelModel, verb: Verb, sequence: int) -> None:
        """Note that a buried message was kicked or discarded."""
        number, owed = self.next_number(), channel.before_burial.pop(sequence)
        channel.buried.remove(sequence, number)
        if verb == "kick":
            channel.owed[sequence] = Owed(since=owed.since, kicked=number, is_new=False)
        else:
            channel.gone[sequence] = Gone(number, owed, False)

    def kick_taken_back(self, channel: ChannelModel, found: BuriedMessages, kicked: set[int]) -> list[int]:
        """Note which messages of a kick are buried again: as they were, and all that nobody got since."""
        again = [sequence for sequence in sorted(kicked) if sequence in found and sequence not in channel.buried.held]
        number = self.next_number()
        for sequence in again:
            taken, burial = channel.owed.pop(sequence), found.get(sequence)
            if burial is None or not taken.kicked or taken.attempts or burial != channel.buried.last_of(sequence):
                raise Violation(f"{channel.name}: message {sequence} is buried again as {burial}, after {taken}")
            channel.before_burial[sequence] = taken
            channel.buried.add(burial, number)
        left = [it for it in kicked if (owed := channel.owed.get(it)) and owed.kicked and not owed.history]
        if left:
            raise Violation(f"{channel.name}: nobody got {left} since the kick, and they are not buried again")
        return again

    def job_begun(self, channel: ChannelModel, verb: Verb, selection: BuriedSelection) -> None:
        channel.buried.job = JobModel(verb, selection, self.next_number())

    def job_stopped(self, channel: ChannelModel) -> None:
        channel.buried.stop_job(self.next_number())

    def observe_job(self, topic: TopicModel, channel: ChannelModel, real: Channel) -> None:
        """Note what a job has taken since the last look, which nobody has asked for in this turn."""
        place, found = f"{topic.name}/{channel.name}", real.buried_queue.buried
        for sequence in [sequence for sequence in channel.buried.held if sequence not in found]:
            for verb in ("kick", "discard"):
                if channel.buried.job_takes(sequence, verb):
                    self.was_taken(channel, verb, sequence)
                    break
            else:
                raise Violation(f"{place}: message {sequence} was buried, and is not any more")
        if channel.buried.job is not None or real.buried_queue.job is not None:
            channel.buried.check_job(real.buried_queue.job, place, self.next_number())

    # What is on disk

    def observe(self, broker: Broker, waiting: int, *, written: bool) -> None:
        """Note, between two turns, what the journal has, and what each log has written and synced."""
        self.journal_has_lost = self.journal_has_lost and not written
        if waiting == 0 and written:
            self.written = Marks(self.number, self.written.lazy if broker.turn.journal.unsaved else self.number)
        for topic in self.topics.values():
            log = broker.topics[topic.name].log
            assert isinstance(log, DiskLog)
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
            if topic.high_watermark != real.high_watermark:
                raise Violation(f"{topic.name}: handed over to {real.high_watermark}, {topic.high_watermark} is right")
            for name, channel in topic.channels.items():
                if not is_ephemeral(name):
                    self._check_channel(topic, channel, real.channels[name])

    def _check_channel(self, topic: TopicModel, channel: ChannelModel, real: Channel) -> None:
        places = dict(places_in(topic.name, real))
        owed = {sequence for sequence in channel.owed if sequence < topic.high_watermark}
        wrong = (owed ^ places.keys()) - topic.vague
        if wrong:
            raise Violation(
                f"{topic.name}/{channel.name}: owes {sorted(owed - topic.vague)}, has {sorted(places)}: differ in {sorted(wrong)}"
            )
        buried = [burial.sequence for burial in real.buried_queue.buried.from_place(0)]
        wrong = (channel.buried.held.keys() ^ set(buried)) - topic.vague
        if wrong or len(buried) != len(real.buried_queue.buried):
            held = sorted(channel.buried.held)
            raise Violation(f"{topic.name}/{channel.name}: buried are {buried}, {held} is right: {sorted(wrong)}")
        for sequence in set(buried) - topic.vague:
            if real.feed.log.next_readable(sequence) != sequence or real.ledger.low_watermark() > sequence:
                raise Violation(f"{topic.name}/{channel.name}: message {sequence} is buried, and may go with the log")
        if real.alarm > real.buried_queue.next_step:
            raise Violation(f"{topic.name}/{channel.name}: nobody is going to do the next step of the job")
        counted = real.depth + len(real.in_flight) + len(real.ledger.deferred)
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
