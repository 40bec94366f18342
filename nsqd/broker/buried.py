"""The messages of a channel that are buried: each with its attempts, and when, why and by whom it was buried.

A buried message is delivered to nobody until somebody kicks it back into the channel, or discards it. There may be a
million of them, so each costs two integers. The reasons, which many messages share, are kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqd.broker.positions import Pins

if TYPE_CHECKING:
    from nsqd.broker.change import ChannelChange

_PIECE: Final = 4_000  # sequences; copying them takes a fraction of a millisecond
_ENTRIES_PER_CHANGE: Final = 2_000  # a millisecond or two of work
_FEW: Final = 1_000  # sequences that left and are still in the order
_ATTEMPTS_BITS: Final = 16
_ATTEMPTS_MASK: Final = (1 << _ATTEMPTS_BITS) - 1
_TIME_BITS: Final = 48
_TIME_MASK: Final = (1 << _TIME_BITS) - 1
_ID_BITS: Final = 64
_ID_MASK: Final = (1 << _ID_BITS) - 1
_NOTE_SHIFT: Final = _ID_BITS + _TIME_BITS + _ATTEMPTS_BITS
_NUMBERS: Final = 5  # of each message in a `bury`


class Note(NamedTuple):
    """Why, and by whom or what, a message was buried."""

    reason: str
    who: str


class Burial(NamedTuple):
    sequence: int
    message_id: int
    attempts: int
    buried_at: int  # milliseconds of the wall clock
    note: Note


class Notes:
    """Each note once, with a number, for as long as a message has it."""

    __slots__ = ("_counts", "_free", "_notes", "_numbers")

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._counts: list[int] = []
        self._numbers: dict[Note, int] = {}
        self._free: list[int] = []  # numbers that no message has any more

    def add(self, note: Note) -> int:
        """Note that one more message has this note, and return its number."""
        number = self._numbers.get(note)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._notes[number], self._counts[number] = note, 0
            else:
                number = len(self._notes)
                self._notes.append(note)
                self._counts.append(0)
            self._numbers[note] = number
        self._counts[number] += 1
        return number

    def remove(self, number: int) -> None:
        """Note that one message less has this note."""
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._numbers[self._notes[number]]
            self._free.append(number)

    def get(self, number: int) -> Note:
        return self._notes[number]

    def copy(self) -> list[Note]:
        return self._notes.copy()

    def counts(self) -> Iterator[tuple[Note, int]]:
        """Yield each note, and how many messages have it."""
        for note, number in self._numbers.items():
            yield note, self._counts[number]


class Buried:
    """All buried messages of one channel, by sequence."""

    __slots__ = ("_entries", "_is_sorted", "_notes", "_order", "pins")

    def __init__(self) -> None:
        self._entries: dict[int, int] = {}  # sequence -> number of the note, id, time, attempts
        self._order: list[int] = []  # all sequences, and some that have left
        self._is_sorted = True
        self._notes = Notes()
        self.pins = Pins()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._entries

    def add(self, burial: Burial) -> None:
        sequence, message_id, attempts, buried_at, note = burial
        self.remove(sequence)
        packed = (self._notes.add(note) << _ID_BITS | message_id) << _TIME_BITS | buried_at & _TIME_MASK
        self._entries[sequence] = packed << _ATTEMPTS_BITS | min(attempts, _ATTEMPTS_MASK)
        self._is_sorted = self._is_sorted and (not self._order or self._order[-1] < sequence)
        self._order.append(sequence)
        self.pins.add(sequence)

    def remove(self, sequence: int) -> bool:
        """Take a message out. Return whether it was there."""
        packed = self._entries.pop(sequence, None)
        if packed is None:
            return False
        self._notes.remove(packed >> _NOTE_SHIFT)
        self.pins.remove(sequence)
        if len(self._order) > 2 * len(self._entries) + _FEW:
            self._order = sorted(self._entries)
            self._is_sorted = True
        return True

    def get(self, sequence: int) -> Burial | None:
        packed = self._entries.get(sequence)
        return None if packed is None else _unpacked(sequence, packed, self._notes.get(packed >> _NOTE_SHIFT))

    def find(self, message_ids: Iterable[int]) -> list[int]:
        """Return the sequences of these messages, as far as they are buried. This looks at everything."""
        wanted = set(message_ids)
        shift = _TIME_BITS + _ATTEMPTS_BITS
        return [place for place, packed in self._entries.items() if packed >> shift & _ID_MASK in wanted]

    def from_place(self, sequence: int) -> Iterator[Burial]:
        """Return what is buried at or behind a sequence now, in ascending order; what leaves meanwhile is left out."""
        return self._still_buried(self._sequences_from(sequence))

    def _still_buried(self, sequences: Iterable[int]) -> Iterator[Burial]:
        for sequence in sequences:
            if (burial := self.get(sequence)) is not None:
                yield burial

    def _sequences_from(self, sequence: int) -> list[int]:
        order = self._sorted()
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if order[middle] < sequence:
                low = middle + 1
            else:
                high = middle
        return order[low:]

    def _sorted(self) -> list[int]:
        """Return all sequences in ascending order, among some that have left."""
        if not self._is_sorted:  # nearly sorted, as messages fail in about the order in which they came
            self._order.sort()
            self._order = list(dict.fromkeys(self._order))  # one that left and came again was there twice
            self._is_sorted = True
        return self._order

    def ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return what is buried in [start, end) as ascending ranges."""
        found: list[tuple[int, int]] = []
        first = stop = start
        for sequence in self._sequences_from(start):
            if sequence >= end:
                break
            if sequence not in self._entries:
                continue
            if sequence != stop:
                if first < stop:
                    found.append((first, stop))
                first = sequence
            stop = sequence + 1
        if first < stop:
            found.append((first, stop))
        return found

    def sequences(self) -> Iterator[list[int]]:
        """Return the sequences of all that is buried now, in pieces."""
        entries = iter(self._entries.copy())
        return iter(lambda: list(islice(entries, _PIECE)), [])

    def reasons(self) -> list[tuple[Note, int]]:
        """Return each reason with how many messages have it, the most frequent first."""
        return sorted(self._notes.counts(), key=lambda counted: -counted[1])

    def cut(self, tail: int) -> bool:
        """Drop what lies at or behind the tail. Return whether there was anything."""
        beyond = [sequence for sequence in self._entries if sequence >= tail]
        for sequence in beyond:
            self.remove(sequence)
        return bool(beyond)

    def clear(self) -> None:
        self._entries.clear()
        self._order.clear()
        self._is_sorted = True
        self._notes = Notes()
        self.pins.clear()

    # The journal

    def changes(self, topic: str, channel: str) -> Iterator[ChannelChange]:
        """Return the changes that tell a new journal of all this, as of this call, even if iterated later."""
        return _changes(topic, channel, self._entries.copy(), self._notes.copy())

    def apply(self, notes: Sequence[str], entries: Sequence[int]) -> None:
        """Add what a `bury` of the journal names."""
        named = [Note(reason, who) for reason, who in zip(notes[::2], notes[1::2], strict=True)]
        fields = zip(*(entries[place::_NUMBERS] for place in range(_NUMBERS)), strict=True)
        for sequence, message_id, attempts, buried_at, number in fields:
            self.add(Burial(sequence, message_id, attempts, buried_at, named[number]))


def bury_change(topic: str, channel: str, burials: Iterable[Burial]) -> ChannelChange:
    numbers: dict[Note, int] = {}
    entries: list[int] = []
    for sequence, message_id, attempts, buried_at, note in burials:
        entries += (sequence, message_id, attempts, buried_at, numbers.setdefault(note, len(numbers)))
    return "bury", topic, channel, [text for note in numbers for text in note], entries


def buried_sequences(entries: Sequence[int]) -> Sequence[int]:
    """Return the sequences that a `bury` names."""
    return entries[::_NUMBERS]


def _changes(topic: str, channel: str, found: dict[int, int], notes: Sequence[Note]) -> Iterator[ChannelChange]:
    entries = iter(found.items())
    while piece := list(islice(entries, _ENTRIES_PER_CHANGE)):
        burials = [_unpacked(sequence, packed, notes[packed >> _NOTE_SHIFT]) for sequence, packed in piece]
        yield bury_change(topic, channel, burials)


def _unpacked(sequence: int, packed: int, note: Note) -> Burial:
    message_id = packed >> _TIME_BITS + _ATTEMPTS_BITS & _ID_MASK
    return Burial(sequence, message_id, packed & _ATTEMPTS_MASK, packed >> _ATTEMPTS_BITS & _TIME_MASK, note)
