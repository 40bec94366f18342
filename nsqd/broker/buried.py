"""The messages of a channel that are buried: each with its attempts, and when, why and by whom it was buried.

A buried message is delivered to nobody until somebody kicks it back into the channel, or discards it. There may be a
million of them, so each costs two integers. Reasons that many messages share are kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from pyroaring import BitMap64

from nsqd.broker.positions import between, in_pieces, number_of_ranges, ranges_in

if TYPE_CHECKING:
    from nsqd.broker.change import ChannelChange
    from nsqd.broker.reclaimer import Reclaimer

BLOCK_BITS: Final = 14  # copying a full block takes a fraction of a millisecond, sorting it a few
_PLACE_MASK: Final = (1 << BLOCK_BITS) - 1  # of a text in its piece
_ENTRIES_PER_CHANGE: Final = 1_000  # a millisecond or two of work
_ATTEMPTS_BITS: Final = 16
_ATTEMPTS_MASK: Final = (1 << _ATTEMPTS_BITS) - 1
_TIME_BITS: Final = 48
_TIME_MASK: Final = (1 << _TIME_BITS) - 1
_ID_BITS: Final = 64
_ID_MASK: Final = (1 << _ID_BITS) - 1
NOTE_SHIFT: Final = _ID_BITS + _TIME_BITS + _ATTEMPTS_BITS
_REST_MASK: Final = (1 << NOTE_SHIFT) - 1
_MOST_SHARED: Final = 4_096  # notes; up to twice as many until the next look, which takes a millisecond or two
_NOTHING: Final[dict[int, int]] = {}
_NUMBERS: Final = 5  # of each message in a `bury`
_MOST_OF_WHO: Final = 128  # bytes; a client may call itself by 64 kB, and may give each message a reason of its own


class Note(NamedTuple):
    """Why, and by whom or what, a message was buried."""

    reason: str
    who: str


def note_of(reason: str, who: str) -> Note:
    """Return the note that is kept of a burial: `who` is cut to 128 bytes, after its last whole character."""
    if len(who) > _MOST_OF_WHO or not who.isascii():
        who = who[:_MOST_OF_WHO].encode("utf-8", "replace")[:_MOST_OF_WHO].decode("utf-8", "ignore")
    return Note(reason, who)


class BuriedMessage(NamedTuple):
    sequence: int
    message_id: int
    attempts: int
    buried_at: int  # milliseconds of the wall clock
    note: Note


class Notes:
    """The notes of all messages, each with a number. Messages with the same note share it.

    Consumers may send a reason of its own with each message (an id in it, say), and a million of those in a dict would
    cost more than the messages. So only frequent and recent notes are shared: now and then those that few messages have
    are forgotten, and from then on belong to these messages alone. A note is one text, because the garbage collector
    never looks at a text.
    """

    __slots__ = ("_counts", "_free", "_lent", "_shared", "_texts")

    def __init__(self) -> None:
        self._texts: list[list[str]] = []  # in pieces, because copying a million takes too long
        self._lent: set[int] = set()  # the pieces that a copy has, too: they are copied before they change
        self._counts: list[int] = []  # how many messages have it
        self._shared: dict[str, int] = {}  # the numbers of notes that further messages may share
        self._free: list[int] = []  # numbers that no message has any more

    def add(self, note: Note) -> int:
        """Note that one more message has this note, and return its number."""
        text = f"{note.reason}\n{note.who}"
        number = self._shared.get(text)
        if number is None:
            if len(self._shared) >= 2 * _MOST_SHARED:
                frequent = nlargest(_MOST_SHARED, self._shared.items(), key=lambda it: self._counts[it[1]])
                self._shared = dict(frequent)
            number = self._shared[text] = self._new_number(text)
        self._counts[number] += 1
        return number

    def _new_number(self, text: str) -> int:
        if self._free:
            number = self._free.pop()
            self._own(number)[number & _PLACE_MASK] = text
            return number
        number = len(self._counts)
        if not number & _PLACE_MASK:
            self._texts.append([])
        self._own(number).append(text)
        self._counts.append(0)
        return number

    def _own(self, number: int) -> list[str]:
        """Return the piece with this number, to change it."""
        piece = number >> BLOCK_BITS
        if piece in self._lent:
            self._lent.remove(piece)
            self._texts[piece] = self._texts[piece].copy()
        return self._texts[piece]

    def remove(self, number: int) -> str:
        """Note that one message less has this note, and return its text."""
        text = text_in(self._texts, number)
        self._counts[number] -= 1
        if not self._counts[number]:
            self._own(number)[number & _PLACE_MASK] = ""
            if self._shared.get(text) == number:
                del self._shared[text]
            self._free.append(number)
        return text

    def get(self, number: int) -> Note:
        return parsed_note(text_in(self._texts, number))

    def copy(self) -> list[list[str]]:
        self._lent.update(range(len(self._texts)))
        return self._texts.copy()

    def clear(self, reclaimer: Reclaimer) -> None:
        reclaimer.add(self._counts, self._shared, self._free)
        reclaimer.add_blocks(self._texts)
        self._texts, self._counts, self._shared, self._free = [], [], {}, []
        self._lent.clear()

    def shared(self) -> Iterator[tuple[Note, int]]:
        """Yield each shared note, and how many messages have it."""
        for text, number in self._shared.items():
            yield parsed_note(text), self._counts[number]


class BuriedMessages:
    """All buried messages of one channel, by sequence.

    They lie in blocks of neighbouring sequences. Whoever needs all of them as of now, such as the snapshot for a new
    journal, takes the blocks themselves, which takes no time. From then on a block is copied before it changes.
    """

    __slots__ = ("_blocks", "_count", "_notes", "_sequences", "_shared")

    def __init__(self) -> None:
        # By block, then by sequence: number of the note, id, time, attempts.
        self._blocks: dict[int, dict[int, int]] = {}
        self._shared: set[int] = set()  # blocks that somebody else holds as well
        self._count = 0
        self._notes = Notes()
        self._sequences = BitMap64()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sequences

    def lowest(self) -> int | None:
        """Return the lowest sequence; None: nothing is buried."""
        return self._sequences.min() if self._count else None

    def all(self) -> BitMap64:
        """Return the sequences of all that is buried, for who only reads them, and within this turn."""
        return self._sequences

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return those of these sequences that are buried."""
        return self._sequences & sequences

    def add(self, burial: BuriedMessage) -> None:
        self._add(*burial)

    def _add(self, sequence: int, message_id: int, attempts: int, buried_at: int, note: Note) -> None:
        if sequence in self:
            self.remove(sequence)
        number = sequence >> BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = {}
        elif number in self._shared:
            block = self._own(number)
        packed = (self._notes.add(note) << _ID_BITS | message_id) << _TIME_BITS | buried_at & _TIME_MASK
        block[sequence] = packed << _ATTEMPTS_BITS | min(attempts, _ATTEMPTS_MASK)
        self._count += 1
        self._sequences.add(sequence)

    def remove(self, sequence: int) -> bool:
        """Take a message out. Return whether it was there."""
        return self.take(sequence) is not None

    def take(self, sequence: int) -> tuple[int, str] | None:
        """Take a message out. Return what was noted of it, packed, and the text of its note; None: it was not there."""
        if sequence not in self:
            return None
        number = sequence >> BLOCK_BITS
        block = self._own(number)
        packed = block.pop(sequence)
        text = self._notes.remove(packed >> NOTE_SHIFT)
        if not block:
            del self._blocks[number]
        self._count -= 1
        self._sequences.remove(sequence)
        return packed & _REST_MASK, text

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

    def get(self, sequence: int) -> BuriedMessage | None:
        block = self._blocks.get(sequence >> BLOCK_BITS)
        packed = block.get(sequence) if block is not None else None
        return None if packed is None else unpacked(sequence, packed, self._notes.get(packed >> NOTE_SHIFT))

    def find(self, message_ids: Iterable[int]) -> Iterator[list[int]]:
        """Yield the sequences of these messages, as far as they are buried now, in pieces, so that others have their turn."""
        return _found(set(message_ids), _each(self._share()))

    def from_place(self, sequence: int) -> Iterator[BuriedMessage]:
        """Return what is buried at or behind a sequence now, in ascending order; what leaves meanwhile is left out."""
        return self._still_buried(_each(self._share(sequence >> BLOCK_BITS)), sequence)

    def _still_buried(self, blocks: Iterable[dict[int, int]], first: int) -> Iterator[BuriedMessage]:
        for block in blocks:
            for place in sorted(block):
                if place >= first and (burial := self.get(place)) is not None:
                    yield burial

    def selected(self, before: int, reason: str) -> Iterator[int | None]:
        """Yield what is buried now, in ascending order; what leaves meanwhile is left out.

        Each is a sequence, or None if it was not buried before this time for a reason that contains this text.
        """
        return self._still_selected(_each(self._share()), before, reason)

    def _still_selected(self, blocks: Iterable[dict[int, int]], before: int, reason: str) -> Iterator[int | None]:
        # A kick of a million is in others' way, so this makes no `BuriedMessage` for each.
        for block in blocks:
            for place in sorted(block):
                packed = self._blocks.get(place >> BLOCK_BITS, _NOTHING).get(place)
                if packed is None:
                    continue
                takes = packed >> _ATTEMPTS_BITS & _TIME_MASK < before
                if takes and reason:
                    takes = reason in self._notes.get(packed >> NOTE_SHIFT).reason
                yield place if takes else None

    def ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return what is buried in [start, end) as ascending ranges."""
        return list(ranges_in(between(self._sequences, start, end)))

    def count_ranges(self) -> int:
        """Return how many ranges all that is buried has."""
        return number_of_ranges(self._sequences)

    def sequences(self) -> Iterator[list[int]]:
        """Return the sequences of all that is buried now, in pieces."""
        return in_pieces(self._sequences)

    def reasons(self, most: int) -> list[tuple[Note, int]]:
        """Return up to `most` notes with how many messages have each, the most frequent first.

        Of thousands of notes, those that few messages have may be missing.
        """
        return nlargest(most, self._notes.shared(), key=lambda counted: counted[1])

    def cut(self, tail: int) -> bool:
        """Drop what lies at or behind the tail. Return whether there was anything."""
        beyond = list(self._sequences.iter_equal_or_larger(tail))
        for sequence in beyond:
            self.remove(sequence)
        return bool(beyond)

    def clear(self, reclaimer: Reclaimer) -> None:
        """Forget everything."""
        reclaimer.add_blocks(self._blocks.values())
        self._notes.clear(reclaimer)
        self._blocks = {}
        self._shared.clear()
        self._count = 0
        self._sequences.clear()

    # The journal

    def changes(self, topic: str, channel: str) -> Iterator[ChannelChange]:
        """Return the changes that tell a new journal of all this, as of this call, even if iterated later."""
        return _changes(topic, channel, self._share(), self._notes.copy())

    def apply(self, notes: Sequence[str], entries: Sequence[int]) -> None:
        """Add what a `bury` of the journal names. Older versions did not shorten the names of clients."""
        named = [note_of(reason, who) for reason, who in zip(notes[::2], notes[1::2], strict=True)]
        for at in range(0, len(entries), _NUMBERS):
            sequence, message_id, attempts, buried_at, number = entries[at : at + _NUMBERS]
            self._add(sequence, message_id, attempts, buried_at, named[number])


def _found(wanted: set[int], blocks: Iterable[dict[int, int]]) -> Iterator[list[int]]:
    shift = _TIME_BITS + _ATTEMPTS_BITS
    left = len(wanted)
    for block in blocks:
        if not left:
            break
        found = [place for place, packed in block.items() if packed >> shift & _ID_MASK in wanted]
        left -= len(found)
        yield found


def bury_change(topic: str, channel: str, burials: Iterable[BuriedMessage]) -> ChannelChange:
    numbers: dict[Note, int] = {}
    entries: list[int] = []
    for sequence, message_id, attempts, buried_at, note in burials:
        entries += (sequence, message_id, attempts, buried_at, numbers.setdefault(note, len(numbers)))
    return "bury", topic, channel, [text for note in numbers for text in note], entries


def buried_sequences(entries: Sequence[int]) -> Sequence[int]:
    """Return the sequences that a `bury` names."""
    return entries[::_NUMBERS]


def _changes(
    topic: str, channel: str, blocks: Iterable[dict[int, int]], notes: Sequence[Sequence[str]]
) -> Iterator[ChannelChange]:
    entries = chain.from_iterable(map(_items, blocks))
    while piece := list(islice(entries, _ENTRIES_PER_CHANGE)):
        burials = [
            unpacked(sequence, packed, parsed_note(text_in(notes, packed >> NOTE_SHIFT))) for sequence, packed in piece
        ]
        yield bury_change(topic, channel, burials)


def text_in(pieces: Sequence[Sequence[str]], number: int) -> str:
    return pieces[number >> BLOCK_BITS][number & _PLACE_MASK]


def parsed_note(text: str) -> Note:
    reason, _, who = text.partition("\n")  # a reason ends with its line
    return Note(reason, who)


def _each(blocks: list[dict[int, int]]) -> Iterator[dict[int, int]]:
    """Yield these blocks, and hold none that was: those that were copied meanwhile are freed one by one."""
    blocks.reverse()
    while blocks:
        yield blocks.pop()


def _items(block: dict[int, int]) -> Iterable[tuple[int, int]]:
    return block.items()


def unpacked(sequence: int, packed: int, note: Note) -> BuriedMessage:
    message_id = packed >> _TIME_BITS + _ATTEMPTS_BITS & _ID_MASK
    return BuriedMessage(sequence, message_id, packed & _ATTEMPTS_MASK, packed >> _ATTEMPTS_BITS & _TIME_MASK, note)
