"""The ledger of everything that clients of a real nsqd were told, and of what may therefore not be lost.

A *life* is the time between a start of nsqd and its end. An answer is a promise, and goes into the ledger. Requests
without an answer at the end of a life are open: the next start shows how they went. Each delivery and each start checks
these promises:

- A message whose OK was read arrives on every channel that existed before it was sent; if there was none, on the first.
- Topics, channels, pauses, deletions and emptyings whose reply was read survive every end.
- A message that was finished in this life, or early enough before the end of an earlier one, never comes again.
- Attempts never go down; within one life, and after a requeue that nsqd has certainly read, they go up.
- A message that was deferred, by DPUB or by a requeue that nsqd has certainly read, never comes early.

How much an end may lose depends on the end (`Excuses`), and on the disk. While the disk is *sick* the journal cannot be
written, so whatever is not answered with an OK (FIN, REQ, a second delivery) is known only to the running process. It
becomes a promise once the disk has been healthy for long enough after it and before the end (`Ledger.is_kept`).

A FIN has no answer. nsqd writes it a tenth of a second after it has read it, but on a busy machine it may read it late,
and wake up late to write it. So seconds alone say nothing, and the ledger also counts *beats*, which are signs of life:
a beat is the answer to a publish that was sent at least BEAT after the beat before. For example, FIN is sent, and then
twenty beats come. The publish of the second beat was sent after the FIN, so nsqd has read that by the third, and its
timer runs by the fourth. Ten more beats take a tenth of a second at least, and then the timer has expired: a task that is
due runs before the next beat but one. That makes sixteen; the others are to spare (FLUSHED_AFTER).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from copy import copy
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nsqcommon.wire.message import Message

OPEN: Final = float("inf")  # instead of a time: not known yet
BEAT: Final = 0.01  # seconds; the poller serves connections for 2 ms at most before nsqd's other tasks run
FLUSHED_AFTER: Final = 20  # beats


class Violation(Exception):
    """A promise was broken."""


class Excuses(NamedTuple):
    """For how many seconds before the end of a life things may be forgotten, and for FLUSHED_AFTER, unless it's 0."""

    finishes: float
    answers: float = 0.0  # finishes that were answered, over HTTP
    changes: float = 0.0  # requeues, attempts, creations, ends of pauses: written first, synced later
    messages: float = 0.0


KILLED: Final = Excuses(finishes=0.1)  # the journal is written every tenth of a second


class Span(NamedTuple):
    start: float
    end: float


class End(NamedTuple):
    at: float
    excuses: Excuses


@dataclass(slots=True)
class Sent:
    """A message. It is in the ledger before it is sent."""

    sent_at: float
    delay: float = 0.0
    answered_at: float = OPEN


@dataclass(slots=True)
class Requeue:
    due: float
    life: int
    sent_at: float
    heeded_at: float = OPEN  # when an answer to a later command was read


class Delivery(NamedTuple):
    attempts: int
    life: int
    at: float


class Moment(NamedTuple):
    at: float
    life: int
    answered: bool = False  # whether nsqd has said that it is done


@dataclass(slots=True, eq=False)
class Channel:
    """One life of a channel's name, from its creation to its deletion."""

    name: str
    there_since: float = OPEN  # when its creation was answered
    owed_since: float = OPEN  # messages sent after this have to arrive: its creation, or when it was last emptied
    leaving: bool = False  # whether its deletion was sent
    paused: bool | None = False  # None: open
    paused_at: float = 0.0
    required: set[int] = field(default_factory=set)
    excused: set[int] = field(default_factory=set)  # an end may have lost these, and they have not come since
    attempts: dict[int, Delivery] = field(default_factory=dict)
    finished: dict[int, Moment] = field(default_factory=dict)
    requeued: dict[int, Requeue] = field(default_factory=dict)
    emptied: dict[int, int] = field(default_factory=dict)  # number -> the life in which it was emptied

    @property
    def is_open(self) -> bool:
        return self.leaving or self.there_since == OPEN

    def copy(self) -> Channel:
        other = copy(self)
        other.required, other.excused = set(self.required), set(self.excused)
        other.attempts, other.finished = dict(self.attempts), dict(self.finished)
        other.requeued = {number: copy(requeue) for number, requeue in self.requeued.items()}
        other.emptied = dict(self.emptied)
        return other


@dataclass(slots=True, eq=False)
class Topic:
    name: str
    passing: bool
    there: bool | None = False  # None: open
    there_at: float = 0.0  # when `there` was answered
    paused: bool | None = False
    paused_at: float = 0.0
    channels: dict[str, Channel] = field(default_factory=dict)
    backlog: set[int] = field(default_factory=set)  # acknowledged while there was no channel
    busy: threading.Lock = field(default_factory=threading.Lock)  # held to publish to a passing topic, or to change it

    def forget(self) -> None:
        """Forget everything about the topic: it was deleted, or another one of its name exists."""
        self.channels.clear()
        self.backlog.clear()
        self.paused, self.paused_at = False, 0.0

    def copy(self) -> Topic:
        other = copy(self)
        other.channels = {name: channel.copy() for name, channel in self.channels.items()}
        other.backlog = set(self.backlog)
        other.busy = threading.Lock()
        return other


class Ledger:
    def __init__(self, *, steady: tuple[str, ...], passing: tuple[str, ...] = ()) -> None:
        self.lock = threading.Lock()
        self.life = 0
        self.ends: dict[int, End] = {}
        self.sick: list[Span] = []  # when the disk failed
        self.beats: list[float] = []  # the times of nsqd's signs of life
        self.messages: dict[int, Sent] = {}
        self.topics = {name: Topic(name, passing=False) for name in steady}
        self.topics |= {name: Topic(name, passing=True) for name in passing}
        self.acknowledged = self.delivered = self.again = self.refused = self.undecided = 0
        self.lost = 0  # messages that an end was allowed to lose, and has lost
        self.oldest_lost = 0.0  # how long before that end the first of them was acknowledged

    def copy(self) -> tuple[float, Ledger]:
        """Return the ledger and the time of this moment, to be compared with the disk of this moment.

        Requests are in the ledger before they are sent, and answers after they were read. While the lock is held,
        nothing is added. So a disk of the end of this time has everything that this ledger knows, and no change that
        it does not know of.
        """
        with self.lock:
            other = copy(self)
            other.lock = threading.Lock()
            other.ends, other.sick, other.beats = dict(self.ends), list(self.sick), list(self.beats)
            other.messages = {number: copy(sent) for number, sent in self.messages.items()}
            other.topics = {name: topic.copy() for name, topic in self.topics.items()}
            return time.monotonic(), other

    # The disk, and the ends of lives

    def falls_sick(self) -> None:
        with self.lock:
            self.sick.append(Span(time.monotonic(), OPEN))

    def is_well(self) -> None:
        with self.lock:
            self.sick[-1] = Span(self.sick[-1].start, time.monotonic())

    def was_sick(self, since: float) -> bool:
        return any(span.end >= since for span in self.sick)

    def ended(self, at: float, excuses: Excuses = KILLED) -> None:
        """Note that nsqd has ended. What this end may have lost is no longer required."""
        with self.lock:
            self.ends[self.life] = End(at, excuses)
            self.life += 1
            if self.sick and self.sick[-1].end == OPEN:
                # Until now, because clients have read and sent until now, and that met a sick disk as well.
                self.sick[-1] = Span(self.sick[-1].start, max(at, time.monotonic()))
            if excuses.messages:
                self._excuse_since(at - excuses.messages)

    def _excuse_since(self, when: float) -> None:
        fresh = {number for number, sent in self.messages.items() if sent.answered_at > when}
        for topic in self.topics.values():
            topic.backlog -= fresh
            for channel in topic.channels.values():
                channel.excused |= channel.required & fresh
                channel.required -= fresh

    def count_lost(self, channel: Channel) -> None:
        """Count excused messages that have not come by now as lost."""
        for number in channel.excused:
            self.lost += 1
            self.oldest_lost = max(self.oldest_lost, self.ends[self.life - 1].at - self.messages[number].answered_at)

    def is_kept(self, when: float, life: int, excuse: float, *, took: float = 0.0) -> bool:
        """Return whether something was on the disk at the end of that life.

        That takes as long as the excuse says on a healthy disk. Without one it was written before it was answered,
        unless the disk was sick while nsqd `took` that time for it.
        """
        known = when
        for span in self.sick:
            if span.end <= known:
                continue
            if span.start > max(known + took, self._settled_at(known, excuse)):
                break
            known = span.end
        if excuse == took == 0 and known == when:
            return True
        return max(known + took, self._settled_at(known, excuse)) < self.ends[life].at

    def _settled_at(self, known: float, excuse: float) -> float:
        """Return until when nsqd may forget what it knew at `known`."""
        if excuse == 0:
            return known
        beat = bisect_right(self.beats, known) + FLUSHED_AFTER - 1
        return max(known + excuse, self.beats[beat] if beat < len(self.beats) else OPEN)

    def _answered(self, numbers: list[int]) -> float:
        """Note an answer to a publish as a sign of life, if it's a beat. Return the time."""
        now = time.monotonic()
        if not self.beats or self.messages[numbers[0]].sent_at >= self.beats[-1] + BEAT:
            self.beats.append(now)
        return now

    def change_is_kept(self, when: float) -> bool:
        """Return the same for a change of topics and channels, at the last end."""
        last = self.life - 1
        return self.is_kept(when, last, self.ends[last].excuses.changes)

    # Publishing

    def sending(self, count: int, delay: float = 0.0) -> list[int]:
        with self.lock:
            now = time.monotonic()
            numbers = list(range(len(self.messages), len(self.messages) + count))
            self.messages.update((number, Sent(now, delay)) for number in numbers)
            return numbers

    def answered_ok(self, topic: Topic, numbers: list[int]) -> None:
        with self.lock:
            self.acknowledged += len(numbers)
            now = self._answered(numbers)
            sent_at = self.messages[numbers[0]].sent_at
            for number in numbers:
                self.messages[number].answered_at = now
            for channel in topic.channels.values():
                if channel.owed_since <= sent_at:
                    # Or it came before its OK.
                    channel.required.update(it for it in numbers if it not in channel.attempts)
            if not topic.channels:
                topic.backlog.update(numbers)

    def answered_refused(self, numbers: list[int], text: str) -> None:
        """Note that these were refused. They may arrive all the same, if not all of a write could be undone."""
        with self.lock:
            self._answered(numbers)
            if not self.was_sick(self.messages[numbers[0]].sent_at):
                raise Violation(f"the disk is well, and publishing is refused: {text}")
            self.refused += len(numbers)

    def history(self, channel: Channel, number: int) -> str:
        """Return what is known about a message, to explain a violation."""
        sent = self.messages[number]
        life, end = next(
            ((it, end.at) for it, end in self.ends.items() if end.at > sent.sent_at), (self.life, sent.sent_at)
        )
        return (
            f"sent in life {life}, {end - sent.sent_at:.3f} s before its end, delay {sent.delay}, "
            f"channel there {sent.sent_at - channel.there_since:.3f} s before"
        )

    # Consuming

    def arrived(self, channel: Channel, message: Message) -> int:
        now = time.monotonic()
        with self.lock:
            self.delivered += 1
            number = int(message.body.split()[0])
            sent = self.messages.get(number)
            if sent is None:
                raise Violation(f"message {number} was never sent")
            if now < sent.sent_at + sent.delay:
                raise Violation(f"deferred message {number} early by {sent.sent_at + sent.delay - now:.3f} s")
            if channel.emptied.get(number, self.life) < self.life:
                raise Violation(f"message {number} came, though {channel.name} was emptied of it")
            self._check_finish(channel, number)
            heeded = self._check_requeue(channel, number, now)
            self._check_attempts(channel, number, message.attempts, heeded=heeded)
            channel.attempts[number] = Delivery(message.attempts, self.life, now)
            channel.required.discard(number)
            channel.excused.discard(number)
            return number

    def _check_finish(self, channel: Channel, number: int) -> None:
        finished = channel.finished.pop(number, None)
        if finished is None:
            return
        self.again += 1
        when, life, answered = finished
        if life == self.life:
            raise Violation(f"message {number} came again after its FIN")
        end = self.ends[life]
        if self.is_kept(when, life, end.excuses.answers if answered else end.excuses.finishes):
            raise Violation(f"message {number} came again, though finished {end.at - when:.3f} s before the end")

    def _check_requeue(self, channel: Channel, number: int, now: float) -> bool:
        requeue = channel.requeued.pop(number, None)
        if requeue is None or not self._still_knows(requeue.sent_at, requeue.life, until=requeue.heeded_at):
            return False
        if now < requeue.due:
            raise Violation(f"requeued message {number} early by {requeue.due - now:.3f} s")
        return True

    def _check_attempts(self, channel: Channel, number: int, attempts: int, *, heeded: bool) -> None:
        last = channel.attempts.get(number)
        if last is None or not self._still_knows(last.at, last.life):
            return
        least = last.attempts + 1 if heeded or last.life == self.life else last.attempts
        if attempts < least:
            raise Violation(f"attempts of message {number} are {attempts} after {last.attempts} on {channel.name}")

    def _still_knows(self, when: float, life: int, *, until: float | None = None) -> bool:
        """Return whether nsqd has to know of a requeue or a delivery, which it carried out between `when` and `until`."""
        if life == self.life:
            return True
        if until == OPEN:
            return False
        took = 0.0 if until is None else until - when  # the disk may have fallen sick meanwhile
        return self.is_kept(when, life, self.ends[life].excuses.changes, took=took)

    def finishing(self, channel: Channel, number: int) -> None:
        """Note a finish, just after the FIN was sent."""
        with self.lock:
            channel.finished[number] = Moment(time.monotonic(), self.life)

    def finish_answered(self, channel: Channel, number: int) -> None:
        """Note that nsqd has answered a finish: from now on it holds."""
        with self.lock:
            if number in channel.finished:
                channel.finished[number] = Moment(time.monotonic(), self.life, answered=True)

    def requeueing(self, channel: Channel, number: int, delay: float) -> Requeue:
        """Note a requeue, just before the REQ is sent."""
        with self.lock:
            now = time.monotonic()
            requeue = channel.requeued[number] = Requeue(now + delay, self.life, now)
            return requeue

    # Topics and channels

    def topic_changing(self, topic: Topic) -> None:
        """Note, just before a topic is made or deleted, that it may be empty from now on.

        Its log is deleted before the journal has the deletion.
        """
        with self.lock:
            topic.there = None
            topic.backlog.clear()
            for channel in topic.channels.values():
                channel.leaving = True
                channel.required.clear()
                channel.excused.clear()

    def topic_changed(self, topic: Topic, *, there: bool) -> None:
        with self.lock:
            topic.there, topic.there_at = there, time.monotonic()
            topic.forget()

    def channel_is_there(self, topic: Topic, channel: Channel) -> None:
        """Note that a channel exists: its creation was answered, or a start has shown it.

        The first channel gets what has waited.
        """
        with self.lock:
            channel.there_since = channel.owed_since = time.monotonic()
            channel.required |= topic.backlog
            topic.backlog.clear()

    def channel_comes(self, topic: Topic, channel: Channel) -> None:
        """Note a channel just before it is made."""
        with self.lock:
            topic.channels[channel.name] = channel

    def channel_goes(self, channel: Channel) -> None:
        """Note a channel's end just before it is deleted."""
        with self.lock:
            channel.leaving = True

    def pausing(self, target: Topic | Channel) -> None:
        """Note a pause, or its end, just before the request."""
        with self.lock:
            target.paused = None

    def pause_is(self, target: Topic | Channel, paused: bool) -> None:
        with self.lock:
            target.paused, target.paused_at = paused, time.monotonic()

    def emptying_topic(self, topic: Topic) -> None:
        with self.lock:
            topic.backlog.clear()

    def channel_is_gone(self, topic: Topic, channel: Channel) -> None:
        with self.lock:
            del topic.channels[channel.name]

    def emptying(self, topic: Topic, channel: Channel) -> set[int]:
        """Note, just before a channel is emptied, and return what has to be gone once this is answered.

        What a pause keeps in the topic stays, and which messages these are nobody outside knows.
        """
        with self.lock:
            going = set(channel.required) if topic.paused is False else set()
            channel.required.clear()
            channel.excused.clear()
            channel.owed_since = OPEN
            return going

    def emptied(self, channel: Channel, gone: set[int]) -> None:
        with self.lock:
            channel.emptied.update(dict.fromkeys(gone - channel.attempts.keys(), self.life))
            channel.owed_since = time.monotonic()
