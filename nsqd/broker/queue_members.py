"""The sequences in a channel's queue, with their attempts. The queue itself only has their order.

We pack each entry into one integer, because that costs 36 to 48 bytes and the garbage collector never visits it. A
tuple of three costs 150 bytes, so a million deferred messages would take 100 MB more. A bitmap costs two bytes per
sequence, and much less if the sequences are neighbours.

**Removing from the middle.** We can't search a queue or a heap of a million entries within a turn. So a bitmap has
the sequences that are here, and the queue or heap has only their order. To take a sequence out, we clear its bit and
leave its entry, which is now *stale*; we drop it when we reach it. The sequence may be added again before that, so
each entry also has a *generation*: how often its sequence had been taken out before. For example, 7 is deferred until
noon, and then moved to midnight:

    7 until noon, generation 0        stale, because 7 has been taken out once
    7 until midnight, generation 1    valid

When there are too many stale entries, each call that changes something drops a few more of them: it moves the valid
entries from the *former* queue, or the former blocks, to new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pyroaring import BitMap64

ATTEMPTS_BITS: Final = 16  # as on the wire, where attempts wrap, too
ATTEMPTS_MASK: Final = (1 << ATTEMPTS_BITS) - 1
SEQUENCE_BITS: Final = 64
SEQUENCE_MASK: Final = (1 << SEQUENCE_BITS) - 1
FEW: Final = 64  # stale entries; up to this many aren't worth dropping
# While there are too many stale entries, we check this many for each one that is added or taken out. So there are never
# more than about twice as many entries as positions.
DROPPED_WITH_EACH: Final = 4
DROPPED_AT_ONCE: Final = 8_000  # entries to check in one call; a few milliseconds
# `replace_before` may check more, because it changes many positions: up to this many, or this fraction of all entries.
# With the fraction, stale entries don't add up without end when one backlog after another is restored.
_DROPPED_WITH_MANY: Final = 12_000
_DROPPED_PART: Final = 4
_NO_CHANGES: Final = BitMap64()  # never changed
PASSED_OVER: Final = 2_000  # stale entries between two yields; a millisecond or two


class AttemptCounts:
    """A small number per sequence, 0 by default, stored as one bitmap for each bit of the numbers.

    For example, if 7 has the number 5 (binary 101), it is in the first and the third bitmap.
    """

    __slots__ = ("_bits",)

    def __init__(self, bits: tuple[BitMap64, ...] = ()) -> None:
        self._bits = bits

    def __bool__(self) -> bool:
        return bool(self._bits)

    def get(self, sequence: int) -> int:
        number, value = 0, 1
        for bits in self._bits:
            if sequence in bits:
                number += value
            value *= 2
        return number

    def set(self, sequence: int, number: int) -> None:
        """Set the number of a sequence, which must be 0 so far."""
        place = 0
        while number:
            if place == len(self._bits):
                self._bits += (BitMap64(),)
            if number & 1:
                self._bits[place].add(sequence)
            number >>= 1
            place += 1

    def above_zero(self) -> BitMap64:
        """Return the sequences whose number isn't 0."""
        return BitMap64.union(*self._bits) if self._bits else BitMap64()

    def of_all(self, sequences: Sequence[int]) -> list[int]:
        """Return the numbers of these sequences, in the same order. Much faster than thousands of calls of `get`."""
        wanted, numbers, value = BitMap64(sequences), [0] * len(sequences), 1
        for bits in self._bits:
            here = bits & wanted
            if len(here) == len(wanted):  # the usual case: all of them have been taken out exactly once
                numbers = [number + value for number in numbers]
            elif here:
                chosen = set(here)
                numbers = [
                    number + value if sequence in chosen else number
                    for sequence, number in zip(sequences, numbers, strict=True)
                ]
            value *= 2
        return numbers

    def set_all(self, sequences: Sequence[int], numbers: Sequence[int]) -> None:
        """Set the numbers of these sequences, which must all be 0 so far."""
        for place in range(max(numbers, default=0).bit_length()):
            chosen = BitMap64(
                [sequence for sequence, number in zip(sequences, numbers, strict=True) if number >> place & 1]
            )
            if place == len(self._bits):
                self._bits += (chosen,)
            else:
                self._bits[place].update(chosen)

    def increment(self, sequences: BitMap64) -> None:
        """Add 1 to the numbers of these sequences, by binary addition on the bitmaps."""
        carried = sequences
        for bits in self._bits:
            both = bits & carried
            bits.symmetric_difference_update(carried)
            carried = both
            if not carried:
                return
        self._bits += (carried.copy(),)

    def forget(self, start: int, end: int) -> None:
        """Reset the numbers of [start, end) to 0."""
        for bits in self._bits:
            bits.remove_range(start, end)

    def forget_all(self, sequences: BitMap64) -> None:
        for bits in self._bits:
            bits.difference_update(sequences)

    def clear(self) -> None:
        self._bits = ()

    def copy(self) -> AttemptCounts:
        return AttemptCounts(tuple(bits.copy() for bits in self._bits))


class Members:
    """The sequences that are really in a queue or heap, with their attempts and generations.

    The queue or heap itself may also have stale entries.
    """

    __slots__ = ("attempts", "count", "generations", "sequences")

    def __init__(self) -> None:
        self.sequences = BitMap64()
        self.attempts = AttemptCounts()
        self.generations = AttemptCounts()
        self.count = 0

    def add(self, sequence: int, attempts: int) -> int:
        """Add a sequence that isn't here yet. Return the generation to put into its entry."""
        self.sequences.add(sequence)
        self.count += 1
        if attempts:
            self.attempts.set(sequence, attempts)
        return self.generations.get(sequence) if self.generations else 0

    def add_all(self, sequences: Sequence[int], attempts: Sequence[int]) -> list[int]:
        """Add sequences that aren't here yet, each with its attempts. Return the generations for their entries."""
        self.sequences |= BitMap64(sequences)
        self.count += len(sequences)
        self.attempts.set_all(sequences, attempts)
        return self.generations.of_all(sequences)

    def counts(self, sequence: int, generation: int) -> bool:
        """Return whether an entry with this generation is valid (not stale)."""
        return sequence in self.sequences and (not self.generations or generation == self.generations.get(sequence))

    def which_count(self, sequences: Sequence[int], generations: Sequence[int]) -> list[bool]:
        """Return whether each of these entries is valid. Much faster than thousands of calls of `counts`."""
        here = set(self.sequences & BitMap64(sequences))
        present = self.generations.of_all(sequences)
        return [
            sequence in here and generation == now
            for sequence, generation, now in zip(sequences, generations, present, strict=True)
        ]

    def remove(self, start: int, end: int, attempts: int) -> None:
        """Remove [start, end), whose entries were popped; all of them had this number of attempts."""
        self.sequences.remove_range(start, end)
        if attempts:
            self.attempts.forget(start, end)
        self.count -= end - start

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out the wanted sequences that are here, and return them. Their entries become stale."""
        here = self.sequences & wanted
        if here:
            self.sequences -= here
            self.attempts.forget_all(here)
            self.generations.increment(here)
            self.count -= len(here)
        return here

    def copy(self) -> Members:
        """Return a copy for checking entries. It has no attempts, because the entries include them."""
        copied = Members()
        copied.sequences, copied.generations = self.sequences.copy(), self.generations.copy()
        return copied

    def clear(self) -> None:
        self.sequences.clear()
        self.attempts.clear()
        self.generations.clear()
        self.count = 0


class NotedMembers(Members):
    """Members of a channel with groups: they also note what has changed, because groups have to follow that (groups.py).

    A channel without groups has plain `Members`, which cost less.
    """

    __slots__ = ("changed",)

    def __init__(self, former: Members) -> None:
        super().__init__()
        self.sequences, self.count = former.sequences, former.count
        self.attempts, self.generations = former.attempts, former.generations
        self.changed = BitMap64()  # sequences that were added, removed or both, since this was last replaced

    def plain(self) -> Members:
        """Return these members without the notes. Don't use this object afterwards."""
        members = Members()
        members.sequences, members.count = self.sequences, self.count
        members.attempts, members.generations = self.attempts, self.generations
        return members

    def add(self, sequence: int, attempts: int) -> int:
        self.changed.add(sequence)
        return super().add(sequence, attempts)

    def add_all(self, sequences: Sequence[int], attempts: Sequence[int]) -> list[int]:
        self.changed |= BitMap64(sequences)
        return super().add_all(sequences, attempts)

    def remove(self, start: int, end: int, attempts: int) -> None:
        self.changed.add_range(start, end)
        super().remove(start, end, attempts)

    def take_out(self, wanted: BitMap64) -> BitMap64:
        here = super().take_out(wanted)
        if here:
            self.changed |= here
        return here

    def clear(self) -> None:
        self.changed |= self.sequences
        super().clear()


def noted(members: Members) -> NotedMembers:
    """Return these members with notes of their changes from now on."""
    return members if isinstance(members, NotedMembers) else NotedMembers(members)


def plain(members: Members) -> Members:
    """Return these members without notes of their changes."""
    return members.plain() if isinstance(members, NotedMembers) else members


def changes_of(members: Members) -> BitMap64:
    """Return the sequences that have come or gone since the last call. None are noted by plain members."""
    if not isinstance(members, NotedMembers) or not members.changed:
        return _NO_CHANGES
    changed, members.changed = members.changed, BitMap64()
    return changed


def dropped_with(changed: int, entries: int) -> int:
    """Return how many entries `replace_before` checks when it changes this many positions."""
    return min(DROPPED_WITH_EACH * changed, max(_DROPPED_WITH_MANY, entries // _DROPPED_PART))


def with_attempts(sequences: BitMap64, attempts: AttemptCounts) -> Iterator[tuple[int, int]]:
    for sequence in sequences:
        yield sequence, attempts.get(sequence)
