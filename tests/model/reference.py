"""What the broker promises, as plainly as possible: each message of each channel is in one place.

This is the model that the state machine compares the broker with. It knows nothing of cursors, ranges or batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf

from nsqcommon.wire.names import is_ephemeral

EPHEMERAL_BOUND = 4  # messages that wait in an ephemeral channel


class Place(Enum):
    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    DEFERRED = "deferred"
    BURIED = "buried"
    DONE = "done"


@dataclass(slots=True)
class Entry:
    """One message in one channel."""

    sequence: int
    place: Place = Place.WAITING
    attempts: int = 0  # of its last delivery
    owner: int = 0  # the consumer that has it
    delivered_at: float = 0.0
    deadline: float = inf
    due: float = 0.0
    saved_attempts: int = 0  # attempts that the journal has
    forgotten: bool = False  # finished, and the journal has it
    was_deferred: bool = False  # published with a delay
    not_before: float = 0.0  # after a seek: deferred if the cursor meets it before this time
    any_order: bool = False  # its first delivery may come before those of earlier messages, or behind later ones
    buried_at: float = 0.0
    only_in_log: bool = False  # an ephemeral channel does not keep it, so it may be gone


@dataclass
class ChannelModel:
    name: str
    paused: bool = False
    entries: dict[int, Entry] = field(default_factory=dict)  # by sequence
    handed_over: int = 0  # messages, as message_count has it
    last_first: int = -1  # the sequence of the latest first delivery
    topic_is_ephemeral: bool = False
    new_from: int | None = None  # the first sequence that was handed over in this turn
    job: str = ""  # what a job does with buried messages: kick or discard
    job_before: float = 0.0  # it is about those that were buried before

    @property
    def ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def keeps(self) -> bool:
        """Return whether the channel has its messages in memory, where they are bounded."""
        return self.ephemeral or self.topic_is_ephemeral

    @property
    def bounded(self) -> int:
        """Return the number of messages to which the bound applies."""
        deferred = self.count(Place.DEFERRED) if self.topic_is_ephemeral else 0
        return self.count(Place.WAITING) + deferred

    def copy(self) -> ChannelModel:
        return replace(self, entries={s: replace(entry) for s, entry in self.entries.items()})

    def at(self, place: Place) -> dict[int, Entry]:
        return {s: entry for s, entry in self.entries.items() if entry.place is place}

    def count(self, place: Place) -> int:
        return sum(entry.place is place for entry in self.entries.values())

    def hand_over(self, messages: list[tuple[int, int]], now: float, *, cold_before: int) -> None:
        """Hand over (sequence, delay in ms) of each. Messages before `cold_before` are only on disk."""
        self.handed_over += len(messages)
        room_for_deferred = EPHEMERAL_BOUND - (self.bounded if self.topic_is_ephemeral else self.count(Place.DEFERRED))
        if self.new_from is None and messages:
            self.new_from = messages[0][0]
        for sequence, delay_ms in messages:
            entry = self.entries[sequence] = Entry(sequence)
            entry.only_in_log = self.keeps and sequence < cold_before
            if delay_ms:
                entry.place, entry.due, entry.was_deferred = Place.DEFERRED, now + delay_ms / 1000, True
                if self.keeps and not entry.only_in_log:
                    room_for_deferred -= 1
                    if room_for_deferred < 0 and self.topic_is_ephemeral:
                        entry.place = Place.DONE
                    entry.only_in_log = room_for_deferred < 0

    def end_turn(self) -> None:
        """Drop the newest messages of this turn that were not taken, if too many wait."""
        if self.keeps and self.new_from is not None:
            never_given = [s for s, entry in self.at(Place.WAITING).items() if not entry.attempts]
            newest = sorted(s for s in never_given if s >= self.new_from and not self.entries[s].was_deferred)[::-1]
            for sequence in newest[: max(0, self.bounded - EPHEMERAL_BOUND)]:
                self.entries[sequence].place = Place.DONE
        self.new_from = None

    def seek(self, cursor: int, end: int, not_before: dict[int, float]) -> None:
        self.empty()
        for sequence in range(cursor, end):
            if sequence not in self.at(Place.BURIED):
                self.entries[sequence] = Entry(sequence, not_before=not_before.get(sequence, 0.0))
        self.handed_over = max(self.handed_over, end - cursor)
        self.last_first = -1

    def restore(self, restored: list[Entry], end: int, *, kicked: set[int]) -> None:
        """Have exactly these messages before `end` wait, besides those in flight, buried, or kicked since."""
        stays = (Place.IN_FLIGHT, Place.BURIED)
        kept = {s for s, entry in self.entries.items() if s >= end or entry.place in stays or s in kicked}
        for sequence, entry in self.entries.items():
            if sequence not in kept:
                entry.place, entry.forgotten = Place.DONE, True
        self.entries.update((entry.sequence, entry) for entry in restored if entry.sequence not in kept)
        for sequence in kicked:
            self.entries[sequence].any_order = True
        self.last_first = -1

    def redeliver(self, sequences: list[int]) -> list[int]:
        """Have these messages wait again, and return those for which this changes something."""
        found = [s for s in sequences if s not in self.entries or self.entries[s].place is Place.DONE]
        self.entries.update((s, Entry(s, any_order=True)) for s in found)
        return found

    def empty(self) -> None:
        for entry in self.entries.values():
            if entry.place is not Place.BURIED:
                entry.place, entry.forgotten = Place.DONE, True

    def bury(self, entry: Entry, now: float) -> None:
        """Bury a message, or drop it where it is only in memory."""
        entry.place, entry.buried_at = (Place.DONE, 0.0) if self.keeps else (Place.BURIED, now)

    def kick(self, entry: Entry) -> None:
        entry.place, entry.attempts, entry.saved_attempts, entry.any_order = Place.WAITING, 0, 0, True

    def expire(self, entry: Entry, now: float, *, buries: bool) -> None:
        if buries and not self.keeps:
            self.bury(entry, now)
        else:
            entry.place = Place.DONE

    def discard(self, entry: Entry) -> None:
        entry.place, entry.forgotten = Place.DONE, True

    def is_due_for_the_job(self, entry: Entry, verb: str) -> bool:
        return self.job == verb and entry.place is Place.BURIED and entry.buried_at < self.job_before


@dataclass
class TopicModel:
    name: str
    paused: bool = False
    learning: bool = False  # its channels elsewhere are not known yet
    published: dict[int, bytes] = field(default_factory=dict)  # sequence -> body, of all that were ever written
    not_before: dict[int, float] = field(default_factory=dict)  # of deferred messages: publication plus delay
    waits_since: dict[int, float] = field(default_factory=dict)  # publication plus delay, of all messages
    # What waits for a channel, or for the end of a pause or of learning:
    behind: list[tuple[int, int]] = field(default_factory=list)
    channels: dict[str, ChannelModel] = field(default_factory=dict)
    message_count: int = 0

    @property
    def ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def flowing(self) -> bool:
        return not self.paused and not self.learning and bool(self.channels)

    @property
    def handed_over(self) -> int:
        """Return the first sequence that no channel has got."""
        return self.behind[0][0] if self.behind else len(self.published)

    def copy(self) -> TopicModel:
        channels = {name: channel.copy() for name, channel in self.channels.items()}
        return replace(self, published=dict(self.published), behind=list(self.behind), channels=channels)

    def publish(self, bodies: list[bytes], delay_ms: int, now: float) -> None:
        for body in bodies:
            if self.ephemeral and not self.flowing and len(self.behind) >= EPHEMERAL_BOUND:
                continue
            sequence = len(self.published)
            self.published[sequence] = body
            self.waits_since[sequence] = now + delay_ms / 1000
            self.behind.append((sequence, delay_ms))
            if delay_ms:
                self.not_before[sequence] = now + delay_ms / 1000
        self.message_count += len(bodies)

    def advance(self, now: float, *, cold_before: int) -> None:
        if self.flowing:
            messages, self.behind = self.behind, []
            for channel in self.channels.values():
                channel.hand_over(messages, now, cold_before=cold_before)
