"""Stores a channel's buried messages: each with its attempts, and when, why and by whom it was buried.

buried_queue.py buries, kicks and discards them. policy.py decides when a message has used up its attempts
(`last_attempt`).

A buried message is not delivered until you kick it back into the channel. There may be a million of them, so each costs
only two integers, and a reason that many messages share is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between, in_pieces, number_of_ranges, ranges_in

if TYPE_CHECKING:
    from nsqd.broker.change import ChannelChange
    from nsqd.broker.reclaimer import Reclaimer

# An entry is one integer: the number of its note, id (64 bits), time (48), attempts (16).
BLOCK_BITS: Final = 14  # copying a full block takes a fraction of a millisecond, sorting it a few milliseconds
_PLACE_MASK: Final = (1 << BLOCK_BITS) - 1  # for a text's index in its piece
_ENTRIES_PER_CHANGE: Final = 1_000  # a millisecond or two of work
_ATTEMPTS_BITS: Final = 16
_ATTEMPTS_MASK: Final = (1 << _ATTEMPTS_BITS) - 1
_TIME_BITS: Final = 48
_TIME_MASK: Final = (1 << _TIME_BITS) - 1
_ID_BITS: Final = 64
_ID_MASK: Final = (1 << _ID_BITS) - 1
NOTE_SHIFT: Final = _ID_BITS + _TIME_BITS + _ATTEMPTS_BITS
_REST_MASK: Final = (1 << NOTE_SHIFT) - 1
_MOST_SHARED: Final = 4_096  # notes; up to twice as many until the next clean-up, which takes a millisecond or two
_NOTHING: Final[dict[int, int]] = {}
_NUMBERS: Final = 5  # per message in a `bury` of the journal
_MOST_OF_WHO: Final = 128  # bytes, because a client's name may have 64 kB, and may differ for each message


class Note(NamedTuple):
    """Why a message was buried, and by whom (a client, an operator or a rule)."""

    reason: str
    who: str


def note_of(reason: str, who: str) -> Note:
    """Return the note for a burial, with `who` truncated to at most 128 bytes, but not within a character."""
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
    """The notes of all messages, by number. Messages with equal notes usually share one.

    A consumer may send a different reason with each message (for example, with an id in it), and a dict of a million
    reasons would cost more than the messages. So we share only frequent and recent notes: now and then, we remove the
    rare ones from the dict, and the next message with such a note gets a new one. A note is stored as a single string,
    because the garbage collector doesn't traverse strings.
    """

    __slots__ = ("_counts", "_free", "_lent", "_shared", "_texts")

    def __init__(self) -> None:
        self._texts: list[list[str]] = []  # by number, in pieces, because copying a million takes too long
        self._lent: set[int] = set()  # pieces shared with a copy: we copy them before we change them
        self._counts: list[int] = []  # by number: how many messages have the note
        self._shared: dict[str, int] = {}  # text -> number, for the notes that new messages may share
        self._free: list[int] = []  # unused numbers

    def add(self, note: Note) -> int:
        """Add a reference to the note, and return its number."""
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
        """Return the piece with this note for a change. If a copy shares the piece, it is copied first."""
        piece = number >> BLOCK_BITS
        if piece in self._lent:
            self._lent.remove(piece)
            self._texts[piece] = self._texts[piece].copy()
        return self._texts[piece]

    def remove(self, number: int) -> str:
        """Drop a reference to the note, and return its text."""
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
        """Yield (note, number of messages) for each shared note."""
        for text, number in self._shared.items():
            yield parsed_note(text), self._counts[number]


class BuriedMessages:
    """All buried messages of a channel, by sequence.

    They are stored in blocks of neighbouring sequences, with copy on write. For example, a snapshot for a new journal
    takes no time, because it shares the blocks; after that, we copy a block before we change it.
    """

    __slots__ = ("_blocks", "_count", "_notes", "_sequences", "_shared")

    def __init__(self) -> None:
        # block number -> sequence -> number of the note, id, time and attempts, packed
        self._blocks: dict[int, dict[int, int]] = {}
        self._shared: set[int] = set()  # numbers of blocks shared with a snapshot
        self._count = 0
        self._notes = Notes()
        self._sequences = BitMap64()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sequences

    def lowest(self) -> int | None:
        """Return the lowest buried sequence, or None if there is none."""
        return self._sequences.min() if self._count else None

    def all(self) -> BitMap64:
        """Return all buried sequences. Don't change them, and don't keep them after this turn."""
        return self._sequences

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return the given sequences that are buried."""
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
        """Remove a message. Return whether it was there."""
        return self.take(sequence) is not None

    def take(self, sequence: int) -> tuple[int, str] | None:
        """Remove a message. Return its packed data and the text of its note, or None if it wasn't there."""
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
        """Return the block with this number for a change. If a snapshot shares the block, it is copied first."""
        if number in self._shared:
            self._shared.remove(number)
            self._blocks[number] = self._blocks[number].copy()
        return self._blocks[number]

    def _share(self, first: int = 0) -> list[dict[int, int]]:
        """Return a snapshot of the blocks from number `first` on, in ascending order."""
        numbers = sorted(number for number in self._blocks if number >= first)
        self._shared.update(numbers)
        return [self._blocks[number] for number in numbers]

    def get(self, sequence: int) -> BuriedMessage | None:
        block = self._blocks.get(sequence >> BLOCK_BITS)
        packed = block.get(sequence) if block is not None else None
        return None if packed is None else unpacked(sequence, packed, self._notes.get(packed >> NOTE_SHIFT))

    def find(self, message_ids: Iterable[int]) -> Iterator[list[int]]:
        """Yield the sequences of the given messages that are buried now, block by block.

        Other work can run between two blocks.
        """
        return _found(set(message_ids), _each(self._share()))

    def from_place(self, sequence: int) -> Iterator[BuriedMessage]:
        """Yield the messages buried now, from `sequence` on, in ascending order.

        Messages that are removed before their turn are left out.
        """
        return self._still_buried(_each(self._share(sequence >> BLOCK_BITS)), sequence)

    def _still_buried(self, blocks: Iterable[dict[int, int]], first: int) -> Iterator[BuriedMessage]:
        for block in blocks:
            for place in sorted(block):
                if place >= first and (burial := self.get(place)) is not None:
                    yield burial

    def selected(self, before: int, reason: str) -> Iterator[int | None]:
        """Yield the selected sequences that are buried now, in ascending order, except ones removed before their turn.

        A message is selected if it was buried before `before` (milliseconds) and its reason contains `reason`. For any
        other message, this yields None, so that you can pause after many of them.
        """
        return self._still_selected(_each(self._share()), before, reason)

    def _still_selected(self, blocks: Iterable[dict[int, int]], before: int, reason: str) -> Iterator[int | None]:
        # No `BuriedMessage` here: creating a million of them would slow down everything else during a kick.
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
        """Return the buried sequences in [start, end) as ascending ranges."""
        return list(ranges_in(between(self._sequences, start, end)))

    def count_ranges(self) -> int:
        """Return the number of ranges that all buried sequences form."""
        return number_of_ranges(self._sequences)

    def sequences(self) -> Iterator[list[int]]:
        """Return all sequences that are buried now, in pieces."""
        return in_pieces(self._sequences)

    def reasons(self, most: int) -> list[tuple[Note, int]]:
        """Return up to `most` notes with their message counts, the most frequent first.

        If there are thousands of notes, rare ones may be missing.
        """
        return nlargest(most, self._notes.shared(), key=lambda counted: counted[1])

    def cut(self, tail: int) -> bool:
        """Drop messages from `tail` on. Return whether there were any."""
        beyond = list(self._sequences.iter_equal_or_larger(tail))
        for sequence in beyond:
            self.remove(sequence)
        return bool(beyond)

    def clear(self, reclaimer: Reclaimer) -> None:
        """Drop all messages. The reclaimer frees their memory bit by bit."""
        reclaimer.add_blocks(self._blocks.values())
        self._notes.clear(reclaimer)
        self._blocks = {}
        self._shared.clear()
        self._count = 0
        self._sequences.clear()

    # The journal

    def changes(self, topic: str, channel: str) -> Iterator[ChannelChange]:
        """Return changes that recreate the state as of this call in a new journal, even if you iterate later."""
        return _changes(topic, channel, self._share(), self._notes.copy())

    def apply(self, notes: Sequence[str], entries: Sequence[int]) -> None:
        """Add the messages of a `bury` in the journal. Truncates clients' names, because older versions didn't."""
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
    """Return the sequences in a `bury`."""
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
    """Yield these blocks without keeping them, so that copied ones are freed one by one."""
    blocks.reverse()
    while blocks:
        yield blocks.pop()


def _items(block: dict[int, int]) -> Iterable[tuple[int, int]]:
    return block.items()


def unpacked(sequence: int, packed: int, note: Note) -> BuriedMessage:
    message_id = packed >> _TIME_BITS + _ATTEMPTS_BITS & _ID_MASK
    return BuriedMessage(sequence, message_id, packed & _ATTEMPTS_MASK, packed >> _ATTEMPTS_BITS & _TIME_MASK, note)
