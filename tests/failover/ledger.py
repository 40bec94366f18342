"""What clients of one node were promised, by however many machines that owned it one after the other.

A *life* is the time in which one process owns the node. Lives may overlap, because a frozen owner doesn't know yet that
another one has taken over. A machine that is lost takes with it what it hasn't shipped: `GRACE` seconds of finishes,
requeues and buries, and of messages in topics that don't wait for the store. The rest is a promise:

    acknowledged                 arrives until it is finished, and stands in the log once
    published twice with a key   stands in the log once
    finished, and shipped        never comes again
    deferred, requeued           never comes early
    buried, and shipped          stays buried
    an id                        belongs to one message
    a sequence                   means one message for ever
    a gap in the history         is left by a power cut only, and of messages that nobody was promised
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from nsqcommon.wire.message import Message

GRACE: Final = 1.2  # seconds: --remote-delay, the journal's 0.1, and a request
KILLED_GRACE: Final = 0.5  # the same for an owner that goes on with its disk, which has what was written


class Violation(Exception):
    """A promise was broken."""


class End(NamedTuple):
    """How an owner has ended. A clean stop has no time: everything before it was shipped."""

    at: float
    grace: float = GRACE
    keeps_messages: bool = False  # all that were acknowledged, in topics that don't wait for the store as well


@dataclass(slots=True)
class Sent:
    """A message. It is in the ledger before it is sent."""

    topic: str
    sent_at: float
    due: float
    key: bytes = b""
    answered_at: float = inf
    answered_in: int = -1  # life
    id: bytes = b""  # as it was delivered last
    id_life: int = -1


@dataclass(slots=True)
class Place:
    """What a channel has done with a message, as its consumers know."""

    attempts: int
    life: int
    at: float
    finished_at: float = inf
    due: float = 0.0  # after a requeue
    is_buried: bool = False
    heeded_at: float = inf  # when a later answer has shown that the requeue or bury was carried out


@dataclass
class Counts:
    acknowledged: int = 0
    deliveries: int = 0
    again: int = 0  # deliveries after a finish that was lost with a machine
    oldest_again: float = 0.0  # how long before the loss the earliest of these finishes was sent
    buried: int = 0
    requeued: int = 0
    repeated: int = 0  # publishes with a key, after an attempt without an answer
    refused: int = 0
    lost_unshipped: int = 0  # of topics that don't wait for the store


@dataclass
class Ledger:
    waiting_topics: tuple[str, ...]  # whose publishers wait for the store
    other_topics: tuple[str, ...]
    channels: tuple[str, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)
    life: int = 0
    ends: dict[int, End] = field(default_factory=dict)  # by life
    lateness: float = 0.0  # by how much a busy machine has delayed a thread at most
    messages: list[Sent] = field(default_factory=list)
    unanswered: list[int] = field(default_factory=list)  # with keys, so they have to be sent again
    counts: Counts = field(default_factory=Counts)
    gaps: dict[str, set[int]] = field(default_factory=dict)  # by topic, what an owner has reported lost at its start
    _places: dict[tuple[str, int], Place] = field(default_factory=dict)  # by channel and number
    _owners_of_ids: dict[bytes, int] = field(default_factory=dict)
    _read: dict[tuple[str, str, int], int] = field(default_factory=dict)  # by topic, log and sequence: a number

    @property
    def topics(self) -> tuple[str, ...]:
        return self.waiting_topics + self.other_topics

    def ended(self, at: float, grace: float = GRACE, *, keeps_messages: bool = False) -> None:
        """Note that another process will own the node from now on."""
        with self.lock:
            self.ends[self.life] = End(at, grace, keeps_messages)
            self.life += 1

    def stopped(self) -> None:
        """Note a clean stop, which came after all clients had gone."""
        self.ended(inf, keeps_messages=True)

    def _is_shipped(self, at: float, life: int) -> bool:
        """Return whether something is certainly kept that an owner did at this time, on a machine as busy as this one."""
        end = self.ends.get(life)
        return end is None or at + end.grace + 2 * self.lateness < end.at

    def figures(self) -> dict[str, float]:
        """Return what is worth knowing of a life that has broken no promise."""
        return {name: round(value, 3) for name, value in vars(self.counts).items()} | {
            "lateness": round(self.lateness, 3)
        }

    # Publishing

    def sending(self, topic: str, count: int, *, delay: float = 0.0, key: bytes = b"") -> list[int]:
        with self.lock:
            now = time.monotonic()
            first = len(self.messages)
            self.messages += [Sent(topic, now, now + delay, key) for _ in range(count)]
            return list(range(first, first + count))

    def answered(self, numbers: list[int], life: int) -> None:
        """Note an OK by the owner of this life."""
        with self.lock:
            now = time.monotonic()
            self.counts.acknowledged += len(numbers)
            for number in numbers:
                self.messages[number].answered_at = now
                self.messages[number].answered_in = life

    def acknowledged_of(self, topics: tuple[str, ...]) -> int:
        """Return how many messages of these topics were acknowledged."""
        with self.lock:
            return sum(it.answered_at < inf and it.topic in topics for it in self.messages)

    def refused(self) -> None:
        with self.lock:
            self.counts.refused += 1

    def send_again(self, number: int) -> None:
        """Note that a publish with a key got no OK, so that it has to be repeated until it gets one."""
        with self.lock:
            self.unanswered.append(number)

    def take_unanswered(self) -> int | None:
        with self.lock:
            if not self.unanswered:
                return None
            self.counts.repeated += 1
            return self.unanswered.pop()

    # Consuming

    def arrived(self, channel: str, message: Message, life: int) -> int:
        now = time.monotonic()
        number = int(message.body.split()[0])
        with self.lock:
            self.counts.deliveries += 1
            if not number < len(self.messages):
                raise Violation(f"message {number} was never sent")
            sent = self.messages[number]
            if now < sent.due:
                raise Violation(f"deferred message {number} came early by {sent.due - now:.3f} s")
            self._check_id(number, sent, message.id, life)
            place = self._places.get((channel, number))
            if place is not None and place.life > life:
                return number  # by an owner that doesn't know yet that it isn't one any more
            if place is not None:
                self._check_order(channel, number, place, message.attempts, life, now)
            self._places[channel, number] = Place(message.attempts, life, now)
            return number

    def _check_id(self, number: int, sent: Sent, message_id: bytes, life: int) -> None:
        owner = self._owners_of_ids.setdefault(message_id, number)
        if owner != number:
            raise Violation(f"messages {owner} and {number} have the same id {message_id.decode()}")
        if sent.id not in (b"", message_id):
            # An owner may have delivered it before it was in the store, and was lost. The repeat was stored elsewhere.
            is_repeat = sent.key and sent.id_life < life and sent.answered_at > self.ends[sent.id_life].at
            if not is_repeat:
                raise Violation(f"message {number} is stored twice, as {sent.id.decode()} and {message_id.decode()}")
        sent.id, sent.id_life = message_id, max(life, sent.id_life)

    def _check_order(self, channel: str, number: int, place: Place, attempts: int, life: int, now: float) -> None:
        label = f"message {number} of {channel}"
        if place.finished_at < inf:
            if place.life == life:
                raise Violation(f"{label} came again after its FIN")
            age = self.ends[place.life].at - place.finished_at
            if self._is_shipped(place.finished_at, place.life):
                raise Violation(f"{label} came again, though finished {age:.3f} s before its owner's end")
            self.counts.again += 1
            self.counts.oldest_again = max(self.counts.oldest_again, age)
        heeded = place.heeded_at < inf and (place.life == life or self._is_shipped(place.heeded_at, place.life))
        if heeded and place.is_buried:
            raise Violation(f"{label} came, though it is buried")
        if heeded and now < place.due:
            raise Violation(f"requeued {label} came early by {place.due - now:.3f} s")
        knows_attempts = place.life == life or self._is_shipped(place.at, place.life)
        if knows_attempts and attempts < place.attempts:
            raise Violation(f"attempts of {label} are {attempts} after {place.attempts}")

    def finishing(self, channel: str, number: int, life: int) -> None:
        """Note a finish, just after the FIN was sent."""
        with self.lock:
            self._place(channel, number, life).finished_at = time.monotonic()

    def requeueing(self, channel: str, number: int, delay: float, life: int) -> Place:
        """Note a requeue, just before the REQ is sent."""
        with self.lock:
            place = self._place(channel, number, life)
            place.due = time.monotonic() + delay
            self.counts.requeued += 1
            return place

    def burying(self, channel: str, number: int, life: int) -> Place:
        """Note a bury, just before it is sent."""
        with self.lock:
            place = self._place(channel, number, life)
            place.is_buried = True
            self.counts.buried += 1
            return place

    def _place(self, channel: str, number: int, life: int) -> Place:
        """Return where a message is; one that doesn't count, if a later owner has delivered it meanwhile."""
        place = self._places[channel, number]
        return place if place.life == life else Place(0, life, 0.0)

    def kicking(self, channel: str, topic: str) -> None:
        """Note, just before, that all buried messages of a channel are given back, with attempts counted from 0."""
        with self.lock:
            for (where, number), place in self._places.items():
                if where == channel and place.is_buried and self.messages[number].topic == topic:
                    place.is_buried, place.attempts = False, 0

    # What is looked at between two lives, and in the end

    def check_buried(self, channel: str, topic: str, listed: set[int]) -> None:
        """Check that messages are buried that have to be. `listed`: those that the node says are."""
        with self.lock:
            for (where, number), place in self._places.items():
                sent = self.messages[number]
                if where != channel or sent.topic != topic or not place.is_buried or number in listed:
                    continue
                is_kept = self._is_kept(sent)
                if is_kept and place.heeded_at < inf and self._is_shipped(place.heeded_at, place.life):
                    raise Violation(f"message {number} of {topic}/{channel} isn't buried any more")

    def _is_kept(self, sent: Sent) -> bool:
        """Return whether a message has to be there: it was acknowledged, and shipped before that or in time."""
        if sent.answered_at == inf:
            return False
        end = self.ends.get(sent.answered_in)
        if sent.topic in self.waiting_topics or (end is not None and end.keeps_messages):
            return True
        return self._is_shipped(sent.answered_at, sent.answered_in)

    def check_all_finished(self) -> None:
        """Check that every acknowledged message has come to every channel, and was finished there."""
        with self.lock:
            missing = []
            for number, sent in enumerate(self.messages):
                if sent.answered_at == inf:
                    continue
                for channel in self.channels:
                    place = self._places.get((channel, number))
                    if place is not None and place.finished_at < inf:
                        continue
                    if self._is_kept(sent):
                        missing.append(f"{sent.topic}/{channel} {number}: {self._history(sent, place)}")
                    else:
                        self.counts.lost_unshipped += 1
            if missing:
                raise Violation(f"{len(missing)} messages of channels are lost:\n" + "\n".join(missing[:20]))

    def _history(self, sent: Sent, place: Place | None) -> str:
        end = self.ends.get(sent.answered_in, End(time.monotonic()))
        text = f"acknowledged in life {sent.answered_in}, {end.at - sent.answered_at:.3f} s before its end, after {sent.answered_at - sent.sent_at:.3f} s"
        return f"{text}, key {sent.key.decode() or 'none'}, last seen {place}"

    def read(self, topic: str, log: str, sequence: int, number: int) -> None:
        """Take a message that a reader of history has seen."""
        with self.lock:
            before = self._read.setdefault((topic, log, sequence), number)
            if before != number:
                raise Violation(f"{topic} {sequence} of {log} is message {number}, and was {before}")

    def lost_in_power_cut(self, topic: str, first: int, end: int) -> None:
        """Take a report of a start: a power cut has taken messages in the middle of a log that nobody had synced.

        Those that had to be there are missed later. What history has shown had to be there as well.
        """
        with self.lock:
            shown = sorted({it for where, _, it in self._read if where == topic} & {*range(first, end)})
            if shown:
                raise Violation(f"a power cut has taken {shown} of {topic}, which history has shown")
            self.gaps.setdefault(topic, set()).update(range(first, end))

    def is_reported(self, topic: str, first: int, end: int) -> bool:
        """Return whether a power cut has taken these sequences."""
        with self.lock:
            return self.gaps.get(topic, set()).issuperset(range(first, end))

    def expected(self, topic: str) -> set[int]:
        """Return the messages of a topic that have to be there."""
        with self.lock:
            return {it for it, sent in enumerate(self.messages) if sent.topic == topic and self._is_kept(sent)}

    def check_history(self, topic: str, log: str, rows: list[tuple[int, int]]) -> None:
        """Check the whole log of a topic, from sequence 0 on: sequences and numbers of messages."""
        for sequence, number in rows:
            self.read(topic, log, sequence, number)
        sequences = [sequence for sequence, _ in rows]
        end = max(sequences, default=-1) + 1
        if sequences != [it for it in range(end) if not self.is_reported(topic, it, it + 1)]:
            raise Violation(f"{topic} has the sequences {sequences}, without those that a power cut has taken")
        stored = [number for _, number in rows]
        once = set(stored)
        if len(once) < len(stored):
            twice = sorted(it for it in once if stored.count(it) > 1)
            raise Violation(f"{topic} has {len(twice)} messages more than once: {twice[:10]}")
        with self.lock:
            known = {number for (where, _, _), number in self._read.items() if where == topic}
        if missing := sorted(self.expected(topic) - once):
            raise Violation(f"{topic} lacks {len(missing)} acknowledged messages: {missing[:10]}")
        if gone := sorted(known - once):  # history shows nothing that could be lost
            raise Violation(f"{topic} has lost {len(gone)} messages that history has shown: {gone[:10]}")
