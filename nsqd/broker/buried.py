"""The messages of a channel that are buried: each with its attempts, and when, why and by whom it was buried.

A buried message is delivered to nobody until somebody kicks it back into the channel, or discards it. There may be a
million of them, so each costs two integers. The reasons, which many messages share, are kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from nsqd.broker.positions import Pins

if TYPE_CHECKING:
    from nsqd.broker.change import ChannelChange

_BLOCK_BITS: Final = 14  # copying a full block takes a fraction of a millisecond, sorting it a few
_ENTRIES_PER_CHANGE: Final = 1_000  # a millisecond or two of work
_ATTEMPTS_BITS: Final = 16
_ATTEMPTS_MASK: Final = (1 << _ATTEMPTS_BITS) - 1
_TIME_BITS: Final = 48
_TIME_MASK: Final = (1 << _TIME_BITS) - 1
_ID_BITS: Final = 64
_ID_MASK: Final = (1 << _ID_BITS) - 1
_NOTE_SHIFT: Final = _ID_BITS + _TIME_BITS + _ATTEMPTS_BITS
_MOST_REASONS: Final = 50_000  # to look at; it takes some ten milliseconds
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
    """All buried messages of one channel, by sequence.

    They lie in blocks of neighbouring sequences. Whoever needs all of them as of now, such as the snapshot for a new
    journal, takes the blocks themselves, which takes no time. From then on a block is copied before it changes.
    """

    __slots__ = ("_blocks", "_count", "_notes", "_shared", "pins")

    def __init__(self) -> None:
        # By block, then by sequence: number of the note, id, time, attempts.
        self._blocks: dict[int, dict[int, int]] = {}
        self._shared: set[int] = set()  # blocks that somebody else holds as well
        self._count = 0
        self._notes = Notes()
        self.pins = Pins()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: int) -> bool:
        block = self._blocks.get(sequence >> _BLOCK_BITS)
        return block is not None and sequence in block

    def add(self, burial: Burial) -> None:
        self._add(*burial)

    def _add(self, sequence: int, message_id: int, attempts: int, buried_at: int, note: Note) -> None:
        if sequence in self:
            self.remove(sequence)
        number = sequence >> _BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = {}
        elif number in self._shared:
            block = self._own(number)
        packed = (self._notes.add(note) << _ID_BITS | message_id) << _TIME_BITS | buried_at & _TIME_MASK
        block[sequence] = packed << _ATTEMPTS_BITS | min(attempts, _ATTEMPTS_MASK)
        self._count += 1
        self.pins.add(sequence)

    def remove(self, sequence: int) -> bool:
        """Take a message out. Return whether it was there."""
        if sequence not in self:
            return False
        number = sequence >> _BLOCK_BITS
        block = self._own(number)
        self._notes.remove(block.pop(sequence) >> _NOTE_SHIFT)
        if not block:
            del self._blocks[number]
        self._count -= 1
        self.pins.remove(sequence)
        return True

    def _own(self, number: int) -> dict[int, int]:
        """Return a block that may be changed."""
        if number in self._shared:
            self._shared.remove(number)
            self._blocks[number] = self._blocks[number].copy()
        return self._blocks[number]

    def _share(self, first: int = 0) -> list[dict[int, int]]:
        """Return the blocks from this one on in ascending order, as they are now."""
        numbers = sorted(number for number in self._blocks if number >= first)
        self._shared.update(numbers)
        return [self._blocks[number] for number in numbers]

    def get(self, sequence: int) -> Burial | None:
        block = self._blocks.get(sequence >> _BLOCK_BITS)
        packed = block.get(sequence) if block is not None else None
        return None if packed is None else _unpacked(sequence, packed, self._notes.get(packed >> _NOTE_SHIFT))

    def find(self, message_ids: Iterable[int]) -> list[int]:
        """Return the sequences of these messages, as far as they are buried. This may look at everything."""
        wanted = set(message_ids)
        shift = _TIME_BITS + _ATTEMPTS_BITS
        found: list[int] = []
        for block in self._blocks.values():
            if len(found) == len(wanted):
                break
            found += [place for place, packed in block.items() if packed >> shift & _ID_MASK in wanted]
        return found

    def from_place(self, sequence: int) -> Iterator[Burial]:
        """Return what is buried at or behind a sequence now, in ascending order; what leaves meanwhile is left out."""
        return self._still_buried(self._share(sequence >> _BLOCK_BITS), sequence)

    def _still_buried(self, blocks: Iterable[dict[int, int]], first: int) -> Iterator[Burial]:
        for block in blocks:
            for place in sorted(block):
                if place >= first and (burial := self.get(place)) is not None:
                    yield burial

    def ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return what is buried in [start, end) as ascending ranges."""
        found: list[tuple[int, int]] = []
        first = stop = start
        for block in sorted(number for number in self._blocks if number >= start >> _BLOCK_BITS):
            for sequence in sorted(self._blocks[block]):
                if sequence < start or sequence >= end:
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
        return map(list, self._share())

    def reasons(self, most: int = _MOST_REASONS) -> list[tuple[Note, int]]:
        """Return up to `most` notes with how many messages have each, the most frequent first.

        If there are very many, not all of them are looked at.
        """
        return nlargest(most, islice(self._notes.counts(), _MOST_REASONS), key=lambda counted: counted[1])

    def cut(self, tail: int) -> bool:
        """Drop what lies at or behind the tail. Return whether there was anything."""
        blocks = [block for number, block in self._blocks.items() if number >= tail >> _BLOCK_BITS]
        beyond = [sequence for block in blocks for sequence in block if sequence >= tail]
        for sequence in beyond:
            self.remove(sequence)
        return bool(beyond)

    def clear(self) -> None:
        self._blocks.clear()
        self._shared.clear()
        self._count = 0
        self._notes = Notes()
        self.pins.clear()

    # The journal

    def changes(self, topic: str, channel: str) -> Iterator[ChannelChange]:
        """Return the changes that tell a new journal of all this, as of this call, even if iterated later."""
        return _changes(topic, channel, self._share(), self._notes.copy())

    def apply(self, notes: Sequence[str], entries: Sequence[int]) -> None:
        """Add what a `bury` of the journal names."""
        named = [Note(reason, who) for reason, who in zip(notes[::2], notes[1::2], strict=True)]
        for at in range(0, len(entries), _NUMBERS):
            sequence, message_id, attempts, buried_at, number = entries[at : at + _NUMBERS]
            self._add(sequence, message_id, attempts, buried_at, named[number])


def bury_change(topic: str, channel: str, burials: Iterable[Burial]) -> ChannelChange:
    numbers: dict[Note, int] = {}
    entries: list[int] = []
    for sequence, message_id, attempts, buried_at, note in burials:
        entries += (sequence, message_id, attempts, buried_at, numbers.setdefault(note, len(numbers)))
    return "bury", topic, channel, [text for note in numbers for text in note], entries


def buried_sequences(entries: Sequence[int]) -> Sequence[int]:
    """Return the sequences that a `bury` names."""
    return entries[::_NUMBERS]


def _changes(
    topic: str, channel: str, blocks: Iterable[dict[int, int]], notes: Sequence[Note]
) -> Iterator[ChannelChange]:
    entries = chain.from_iterable(map(_items, blocks))
    while piece := list(islice(entries, _ENTRIES_PER_CHANGE)):
        burials = [_unpacked(sequence, packed, notes[packed >> _NOTE_SHIFT]) for sequence, packed in piece]
        yield bury_change(topic, channel, burials)


def _items(block: dict[int, int]) -> Iterable[tuple[int, int]]:
    return block.items()


def _unpacked(sequence: int, packed: int, note: Note) -> Burial:
    message_id = packed >> _TIME_BITS + _ATTEMPTS_BITS & _ID_MASK
    return Burial(sequence, message_id, packed & _ATTEMPTS_MASK, packed >> _ATTEMPTS_BITS & _TIME_MASK, note)
