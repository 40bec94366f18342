"""The comparison after a start: what has to be there, and what may be there, with what is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf

from nsqcommon.wire.names import is_ephemeral
from nsqd.broker.broker import Broker
from nsqd.broker.buried import BuriedMessage
from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic
from nsqd.log.topic_log import DiskLog
from tests.simulation import limiting
from tests.simulation.contents import ahead_in, contents_of, places_in
from tests.simulation.disk import Crash, SimulatedDisk
from tests.simulation.ledger import Ledger
from tests.simulation.models import ChannelModel, Due, Gone, Known, Owed, TopicModel
from tests.simulation.promise import Marks, Violation


def reconcile(
    ledger: Ledger, broker: Broker, disk: SimulatedDisk, crash: Crash, *, synced: bool, doubts: Mapping[str, int]
) -> None:
    """Compare after a restart. `synced`: the start has synced what it found.

    `doubts`: for each topic, the sequence from which nsqd has reported to read it again.
    """
    marks = ledger.synced if crash.is_power_cut else ledger.written
    number = ledger.next_number()
    for name in [*ledger.topics, *ledger.deleted]:
        if name not in broker.topics:
            _may_be_missing(ledger, name, marks, crash)
    for name, real in broker.topics.items():
        known = ledger.topics.get(name)
        is_known_log = known is not None and isinstance(real.log, DiskLog) and known.log_id == real.log.log_id
        topic = _candidate(ledger, name, real, marks, crash)
        _Comparison(ledger, topic, real, marks, crash, doubts.get(name, inf), is_known_log=is_known_log).run(disk)
        topic.created = number
        ledger.topics[name] = topic
    ledger.deleted.clear()
    ledger.begun.clear()
    for topic in ledger.topics.values():
        topic.deleted_channels.clear()
    ledger.written = Marks(number, number)
    ledger.synced = ledger.written if synced else Marks(number - 1, number - 1)


def _may_be_missing(ledger: Ledger, name: str, marks: Marks, crash: Crash) -> None:
    topic = ledger.topics.pop(name, None)
    if topic is None:
        return
    if topic.created <= marks.urgent:
        raise Violation(f"topic {name} is lost")
    if lost := required(topic, crash):
        raise Violation(f"topic {name} is lost with messages {sorted(lost)}")


def _candidate(ledger: Ledger, name: str, real: Topic, marks: Marks, crash: Crash) -> TopicModel:
    """Return which of the topics of this name the found one is."""
    assert isinstance(real.log, DiskLog)
    current = ledger.topics.get(name)
    deletions = [(number, topic) for number, topic in ledger.deleted.get(name, ()) if number > marks.urgent]
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
        # A new folder whose log.json is damaged gets the id that the journal knows. The old one was removed as asked.
        if topic.log_id == real.log.log_id and real.log.tail:
            if current is not None and current.created <= marks.urgent:
                raise Violation(f"topic {name} is the one that was deleted")
            if current is not None:  # the second place may know the channels of the one that was made since
                for channel in current.channels:
                    topic.deleted_channels.setdefault(channel, (current.created, ChannelModel(channel, 0)))
            return topic
    if current is None and not deleted and name in ledger.begun:
        return TopicModel(name, real.log.log_id, "memory", ledger.number)
    if current is None and not deleted:
        raise Violation(f"topic {name} was deleted and came back")
    topic = _of_channels(real, [*([current] if current is not None else []), *deleted[::-1]])
    topic.log_id = real.log.log_id
    ledger.seen.pop(topic.log_id, None)
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
        self,
        ledger: Ledger,
        topic: TopicModel,
        real: Topic,
        marks: Marks,
        crash: Crash,
        doubted: float,
        *,
        is_known_log: bool,
    ) -> None:
        self.ledger = ledger
        self.topic = topic
        self.real = real
        self.marks = marks
        self.crash = crash
        self.is_known_log = is_known_log  # and not one that got a new id, because neither file knows the last one
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
        topic.tail, topic.high_watermark = tail, real.high_watermark
        topic.counted, topic.began_at = dict(real.policy_counts), first
        self._find_unparked()
        self._compare_cancelled()
        topic.acknowledged &= found.keys()
        topic.written_tail, topic.synced_tail = tail, real.log.synced_tail

    def _find_unparked(self) -> None:
        topic = self.topic
        parked = {s for start, count, _ in self.real.early_deferrals.batches for s in range(start, start + count)}
        parked |= set(self.real.early_deferrals.cancelled)
        behind = range(topic.high_watermark, topic.tail)
        delayed = {s for s in behind if s in topic.messages and self.ledger.published[topic.messages[s]].delay}
        before, topic.unparked = topic.unparked, delayed - parked
        # The record of a refused message may be complete, if it could not be taken back; nobody got an OK for it.
        new = (topic.unparked - before) & topic.acknowledged
        if new and not (self.crash.is_power_cut or self.ledger.journal_has_lost):
            raise Violation(f"{topic.name}: {sorted(new)} are deferred, and nobody knows")

    def _compare_cancelled(self) -> None:
        """Compare what was taken back before it was handed over. With channels, these have told already."""
        topic, real = self.topic, self.real
        for sequence, number in topic.cancelled.items():
            is_back = (
                sequence >= real.high_watermark
                and not real.early_deferrals.holds(sequence)
                and self._survived(sequence)
            )
            if is_back and max(number, topic.created) <= self.marks.urgent:
                raise Violation(f"{topic.name}: message {sequence} was taken back, and waits for a channel")
        topic.cancelled = dict.fromkeys(real.early_deferrals.cancelled, self.ledger.number)

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
        # Before its first checkpoint is on the disk, a log can't tell a torn end of several files from damage.
        has_checkpoint = self.is_known_log and topic.created <= self.marks.urgent
        if has_checkpoint and first < tail and tail - 1 not in found.keys() | self.was_vague:
            raise Violation(f"{topic.name}: the log is [{first}, {tail}), and there is nothing at its end")
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
        places = dict(places_in(topic.name, found))
        beyond = [it for it in range(real.high_watermark, real.log.tail) if not real.early_deferrals.holds(it)]
        places.update((sequence, 0) for sequence in beyond)
        buried = {burial.sequence: burial for burial in found.buried_queue.buried.from_place(0)}
        number = self.ledger.number
        missing = self._missing(channel, places.keys() | buried.keys(), first)
        dropped = limiting.dropped_by_start(real, found)
        if len(missing) > dropped:
            lost = f"messages {sorted(missing)} were not finished, and will not be delivered"
            raise Violation(f"{place}: {lost}; the log begins at {first}, and {dropped} were dropped")
        for sequence in missing.keys() & channel.owed.keys():
            if limiting.is_known_to_be_wanted(missing[sequence], self.marks):
                raise Violation(f"{place}: the start has dropped {sequence}, which somebody wants: {missing[sequence]}")
        buried_by_start = found.policy_counts.get(limiting.BURIED, 0)
        self._compare_buried(channel, buried, buried_by_start, place)
        self._compare_what_came_back(channel, places.keys(), place)
        if channel.paused != found.paused:
            is_by_policy = bool(found.paused_why)  # in a turn that has not ended
            if max(channel.paused_since, channel.created) <= self.marks.urgent and not is_by_policy:
                raise Violation(f"{place}: the pause is {found.paused}")
            channel.paused = found.paused
        is_later = {*ahead_in(found), *beyond}
        channel.owed = {
            sequence: self._owed(channel, sequence, attempts, place, is_new=sequence in is_later)
            for sequence, attempts in places.items()
        }
        channel.gone = {
            # What this start has dropped may come back: the journal does not know it yet.
            sequence: gone._replace(number=number + 1, lazily=True) if dropped else gone._replace(number=number)
            for sequence, gone in [*channel.gone.items(), *((s, Gone(number, it, True)) for s, it in missing.items())]
            if sequence not in places and sequence not in buried and sequence in topic.messages
        }
        channel.before_burial = {
            sequence: Owed(burial.attempts, [Known(burial.attempts, number, lazily=False)])
            for sequence, burial in buried.items()
        }
        is_known = channel.created <= self.marks.urgent
        marks, synced = (self.marks, self.ledger.synced) if is_known else (Marks(-1, -1), Marks(-1, -1))
        channel.buried.adopt(
            [*buried.values()],
            found.buried_queue.job,
            place=place,
            marks=marks,
            synced=synced,
            number=number + 1 if buried_by_start else number,  # the journal may not have it yet
        )
        channel.created = channel.paused_since = channel.sought = number
        channel.counted, channel.bury_count = dict(found.policy_counts), found.buried_queue.bury_count
        channel.recent.forget()

    def _missing(self, channel: ChannelModel, there: Collection[int], first: int) -> dict[int, Owed]:
        """Return what was owed, and is neither in its place nor anywhere else."""
        missing: dict[int, Owed] = {}
        for sequence, owed in [*channel.owed.items(), *channel.before_burial.items()]:
            if owed.since > self.marks.urgent or channel.buried.job_takes(sequence, "discard"):
                continue  # the seek may be lost
            went_with_segment = sequence in self.needed and sequence < first and sequence not in self.topic.messages
            if went_with_segment or (self._survived(sequence) and sequence not in there):
                missing[sequence] = owed
        return missing

    def _survived(self, sequence: int) -> bool:
        return sequence in self.before and self.topic.messages.get(sequence) == self.before[sequence]

    def _compare_buried(
        self, channel: ChannelModel, buried: dict[int, BuriedMessage], by_start: int, place: str
    ) -> None:
        """Compare where `by_start` messages were buried by the start, because more waited than a bound allows."""
        if channel.created > self.marks.urgent:
            return  # only topology.json may have it, or an earlier channel of this name
        for sequence in channel.buried.wrong(buried, self.marks):
            if by_start and sequence in buried and buried[sequence].note.reason.endswith("(overflow)"):
                by_start -= 1
            elif self._survived(sequence):
                possible = channel.buried.possible(sequence, self.marks)
                raise Violation(f"{place}: message {sequence} is {buried.get(sequence)}, {possible} is right")
        for sequence in buried if not by_start else ():
            if not self._survived(sequence) and sequence not in self.was_vague and sequence in self.topic.messages:
                raise Violation(f"{place}: message {sequence} is new, and is buried: {buried[sequence]}")

    def _compare_what_came_back(self, channel: ChannelModel, places: Collection[int], place: str) -> None:
        topic, marks = self.topic, self.marks
        if channel.created > marks.urgent:
            return  # only topology.json may have it, or an earlier channel of this name
        for sequence in places:
            is_new = sequence not in self.before or topic.messages.get(sequence) != self.before[sequence]
            if sequence in channel.owed or is_new:
                continue
            gone = channel.gone.get(sequence)
            was_answered = gone is not None and not gone.lazily and gone.number <= self.ledger.answered
            if (sequence >= self.doubted and not was_answered) or sequence in channel.before_burial:
                continue
            if gone is None:
                raise Violation(f"{place}: message {sequence} came before the channel, and will be delivered")
            if gone.number <= (marks.lazy if gone.lazily else marks.urgent):
                raise Violation(
                    f"{place}: message {sequence} was {'finished' if gone.lazily else 'emptied'}, and is back"
                )

    def _owed(self, channel: ChannelModel, sequence: int, attempts: int, place: str, *, is_new: bool) -> Owed:
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
        history = [] if is_new else [Known(attempts, self.ledger.number, lazily=attempts == 1)]
        owed = Owed(attempts, history, is_new=is_new, holds_up=attempts > 0)
        if before is not None:
            if before.since > self.ledger.synced.urgent:  # and the start may not be synced either
                owed.since = self.ledger.number
            if (
                max(channel.created, channel.sought, before.since, before.kicked) <= self.marks.urgent
            ):  # otherwise the earlier state may be back
                self._compare_attempts(before, attempts, place, sequence)
                owed.holds_up |= not is_new and self._is_known_to_be_delivered(before)
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

    def _is_known_to_be_delivered(self, before: Owed) -> bool:
        """Return whether the journal knows that a message was requeued, although its only delivery did not count."""
        return before.holds_up and before.history[-1].number <= self.marks.urgent and not before.history[-1].lazily

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
        lost = {s for s in self.needed if topic.high_watermark <= s < real.high_watermark}
        if len(lost) > real.policy_counts.get(limiting.DROPPED, 0):
            raise Violation(
                f"{topic.name}: {sorted(lost)} waited for a channel, and begin at {real.high_watermark} now"
            )


def _short(body: bytes | None) -> str:
    return "nothing" if body is None else repr(body[:12])
