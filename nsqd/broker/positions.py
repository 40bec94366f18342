"""Sequences that a channel keeps besides its cursor: gaps, retries and deferrals, as plain integers and bitmaps.

An integer of packed fields costs 36 to 48 bytes, and the garbage collector never looks at it; a tuple of three costs
150. With a million deferred messages, that difference is 100 MB. A bitmap costs two bytes for each sequence, and much
less where they are neighbours.

**Taking one out of the middle.** A queue or a heap of a million cannot be searched while others wait. So bitmaps tell
*what* is here, and the queue or the heap only *in which order*: whoever takes a sequence out leaves its entry where it
is, and the entry is dropped when it is met. The same sequence may come back meanwhile, so each entry has the
*generation* of its sequence: how often that was taken out before. Say 7 is deferred until noon, and then moved to
midnight:

    7 until noon, generation 0        7 was taken out once: an entry counts if its generation is 1
    7 until midnight, generation 1

Where too many entries are left over, they are dropped little by little, by whoever takes more out: the entries move
from a former queue, or from former blocks, to new ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, compress, islice
from typing import Final

from pyroaring import BitMap64

from nsqd.broker.reclaimer import MANY, Reclaimer

_ATTEMPTS_BITS: Final = 16
_ATTEMPTS_MASK: Final = (1 << _ATTEMPTS_BITS) - 1
_SEQUENCE_BITS: Final = 64
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1
_GENERATION_BITS: Final = 40  # of a deferral: it cannot be taken out and come back so often
_GENERATION_MASK: Final = (1 << _GENERATION_BITS) - 1
_REST_BITS: Final = _ATTEMPTS_BITS + _GENERATION_BITS
_PIECE: Final = 4_000  # positions; copying them takes a fraction of a millisecond
_BLOCK: Final = 1_024  # entries; sorting them takes a fraction of a millisecond
_SMALL_BLOCK: Final = 128  # entries, which go back to the heap
_COPIED_AS_ONE: Final = 8  # entries that are copied in the time in which one is taken out
_BLOCKS_AT_ONCE: Final = 2_000  # blocks in which a page looks for its beginning; a millisecond or two
_WALKED_AT_ONCE: Final = 1_000  # entries of a page; a millisecond
_FEW: Final = 64  # entries that were taken out and are not worth dropping
# Entries that are looked at for each one that is taken out or added, while there are too many; so they never come to
# more than twice as many as there are positions.
_DROPPED_WITH_EACH: Final = 4
_DROPPED_AT_ONCE: Final = 8_000  # some milliseconds
# The same when as many as a document has are replaced, or this part of all entries: the more were left over by one
# document after the other, the more are looked at, so they do not grow without end.
_DROPPED_WITH_MANY: Final = 12_000
_DROPPED_PART: Final = 4
_UNPACKED_AT_ONCE: Final = 5_000  # messages of a run; some milliseconds
_LEFT_OVER_AT_ONCE: Final = 5_000  # entries that were taken out, before the first one that counts
_PASSED_OVER: Final = 2_000  # entries that were taken out, before others have their turn: a millisecond or two

# Batches that were deferred together: when, in microseconds; start, count and delay in milliseconds of each; which of
# their sequences are deferred; and from which batch on, and which message of it, they are not on the heap yet. Several
# channels share the batches and the bitmap, which nobody changes.
_Run = tuple[int, list[tuple[int, int, int]], BitMap64, int, int]

# The next entry, its place, and all entries in order. Several iterators share the list, which nobody changes.
_Block = tuple[int, int, list[int]]
_NO_BLOCKS: Final[list[_Block]] = []


def ranges_in(sequences: BitMap64) -> Iterator[tuple[int, int]]:
    """Return these sequences as ascending [start, end) ranges. This looks at no single sequence before it is asked."""
    moved = sequences.shift(1)
    return zip(sequences - moved, moved - sequences, strict=True)


def number_of_ranges(sequences: BitMap64) -> int:
    """Return how many ranges `ranges_in` yields."""
    return len(sequences - sequences.shift(1))


def bitmap_of(start: int, end: int) -> BitMap64:
    """Return the sequences [start, end)."""
    found = BitMap64()
    if start < end:
        found.add_range(start, end)
    return found


def bitmap_of_ranges(ranges: Iterable[tuple[int, int]]) -> BitMap64:
    found = BitMap64()
    for start, end in ranges:
        found.add_range(start, end)
    return found


def between(sequences: BitMap64, start: int, end: int) -> BitMap64:
    """Return those of these sequences that lie in [start, end), where there may be a gulf on either side."""
    found = sequences.copy()
    found.remove_range(0, start)
    if found and found.max() >= end:
        found.remove_range(end, found.max() + 1)
    return found


def in_pieces(sequences: BitMap64) -> Iterator[list[int]]:
    """Return these sequences, as they are now, in pieces."""
    rest = iter(sequences.copy())
    return iter(lambda: list(islice(rest, _PIECE)), [])


class SkipRanges:
    """Sequences ahead of a cursor that the cursor passes over."""

    __slots__ = ("_covered", "total")

    def __init__(self, covered: BitMap64 | None = None) -> None:
        self._covered = BitMap64() if covered is None else covered
        self.total = len(self._covered)  # how many sequences lie in all ranges

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges, as they are now, as [start, end) in ascending order."""
        return ranges_in(self._covered)

    def __len__(self) -> int:
        return number_of_ranges(self._covered)

    def copy(self) -> SkipRanges:
        return SkipRanges(self._covered.copy())

    def add(self, start: int, end: int) -> None:
        """Cover the sequences [start, end), of which no range covers any yet; they may lie anywhere."""
        if start < end:
            self._covered.add_range(start, end)
            self.total += end - start

    def cover(self, sequences: BitMap64) -> None:
        """Cover these sequences, of which no range covers any yet."""
        self._covered |= sequences
        self.total += len(sequences)

    def covers(self, sequence: int) -> bool:
        return sequence in self._covered

    def free_among(self, sequences: BitMap64) -> BitMap64:
        """Return those of these sequences that no range covers."""
        return sequences - self._covered

    def behind(self, sequence: int) -> BitMap64:
        """Return what is covered at or behind a sequence."""
        covered = self._covered.copy()
        covered.remove_range(0, sequence)
        return covered

    def add_newest(self, count: int, floor: int, end: int) -> list[tuple[int, int]]:
        """Cover the `count` newest sequences of [floor, end) that no range covers yet; `end` is beyond all ranges.

        Return the sequences as ranges, from the newest to the oldest.
        """
        free = bitmap_of(floor, end) - self._covered
        if len(free) > count:
            free = free[len(free) - count :] if count else BitMap64()
        self._covered |= free
        self.total += len(free)
        return list(ranges_in(free))[::-1]

    def free_ranges(self, floor: int, end: int) -> list[tuple[int, int]]:
        """Return the ascending ranges of [floor, end) that no range covers."""
        return list(ranges_in(bitmap_of(floor, end) - self._covered))

    def pass_over(self, sequence: int) -> int:
        """Return where a cursor at `sequence` stands after the ranges there. Ranges before that place are dropped."""
        covered = self._covered
        if not self.total or covered.min() > sequence:
            return sequence
        stop = self._end_of_range(sequence) if sequence in covered else sequence
        self.total -= covered.range_cardinality(0, stop)
        covered.remove_range(0, stop)
        return stop

    def _end_of_range(self, sequence: int) -> int:
        """Return the end of the range that covers a sequence, by steps that double and then halve."""
        covered, end, step = self._covered, sequence + 1, 1
        while covered.contains_range(end, end + step):
            end += step
            step *= 2
        while step > 1:
            step //= 2
            if covered.contains_range(end, end + step):
                end += step
        return end

    def next_start(self) -> int | None:
        return self._covered.min() if self.total else None

    def clear(self) -> None:
        self._covered.clear()
        self.total = 0


class AttemptCounts:
    """A small number for each sequence, 0 unless it was set: a bitmap for each bit of the numbers."""

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
        """Set the number of a sequence that has none."""
        place = 0
        while number:
            if place == len(self._bits):
                self._bits += (BitMap64(),)
            if number & 1:
                self._bits[place].add(sequence)
            number >>= 1
            place += 1

    def of_all(self, sequences: Sequence[int]) -> list[int]:
        """Return the number of each of these sequences, in their order. Thousands of calls of `get` take far longer."""
        wanted, numbers, value = BitMap64(sequences), [0] * len(sequences), 1
        for bits in self._bits:
            here = bits & wanted
            if len(here) == len(wanted):  # mostly all of them were taken out once, and no other time
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
        """Set the number of each of these sequences, which have none."""
        for place in range(max(numbers, default=0).bit_length()):
            chosen = BitMap64(
                [sequence for sequence, number in zip(sequences, numbers, strict=True) if number >> place & 1]
            )
            if place == len(self._bits):
                self._bits += (chosen,)
            else:
                self._bits[place].update(chosen)

    def increment(self, sequences: BitMap64) -> None:
        """Add 1 to the numbers of these sequences."""
        carried = sequences
        for bits in self._bits:
            both = bits & carried
            bits.symmetric_difference_update(carried)
            carried = both
            if not carried:
                return
        self._bits += (carried.copy(),)

    def forget(self, start: int, end: int) -> None:
        """Have the sequences [start, end) no number any more."""
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
    """Which sequences are in a queue or a heap, whatever entries it has: with their attempts and generations."""

    __slots__ = ("attempts", "count", "generations", "sequences")

    def __init__(self) -> None:
        self.sequences = BitMap64()
        self.attempts = AttemptCounts()
        self.generations = AttemptCounts()
        self.count = 0

    def add(self, sequence: int, attempts: int) -> int:
        """Add a sequence that is not here. Return its generation, for its entry."""
        self.sequences.add(sequence)
        self.count += 1
        if attempts:
            self.attempts.set(sequence, attempts)
        return self.generations.get(sequence) if self.generations else 0

    def add_all(self, sequences: Sequence[int], attempts: Sequence[int]) -> list[int]:
        """Add sequences that are not here, each with its attempts. Return their generations, for their entries."""
        self.sequences |= BitMap64(sequences)
        self.count += len(sequences)
        self.attempts.set_all(sequences, attempts)
        return self.generations.of_all(sequences)

    def counts(self, sequence: int, generation: int) -> bool:
        """Return whether an entry with this generation is not one that was taken out."""
        return sequence in self.sequences and (not self.generations or generation == self.generations.get(sequence))

    def which_count(self, sequences: Sequence[int], generations: Sequence[int]) -> list[bool]:
        """Return what `counts` says of each of these entries. Thousands of calls of it take far longer."""
        here = set(self.sequences & BitMap64(sequences))
        present = self.generations.of_all(sequences)
        return [
            sequence in here and generation == now
            for sequence, generation, now in zip(sequences, generations, present, strict=True)
        ]

    def remove(self, start: int, end: int, attempts: int) -> None:
        """Remove [start, end), whose entries are gone; all of them had so many attempts."""
        self.sequences.remove_range(start, end)
        if attempts:
            self.attempts.forget(start, end)
        self.count -= end - start

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out those of the wanted sequences that are here, and return them. Their entries count no longer."""
        here = self.sequences & wanted
        if here:
            self.sequences -= here
            self.attempts.forget_all(here)
            self.generations.increment(here)
            self.count -= len(here)
        return here

    def copy(self) -> Members:
        """Return a copy that tells which entries count."""
        copied = Members()
        copied.sequences, copied.generations = self.sequences.copy(), self.generations.copy()
        return copied

    def clear(self) -> None:
        self.sequences.clear()
        self.attempts.clear()
        self.generations.clear()
        self.count = 0


class RetryQueue:
    """Positions that wait for their next delivery, first come first served."""

    __slots__ = ("_former", "_leftovers", "_queue", "members", "passed")

    def __init__(self, reclaimer: Reclaimer) -> None:
        self._leftovers = reclaimer
        self._queue: deque[int] = deque()  # generation, sequence, attempts
        # Entries that come before those of the queue, while some are dropped. There are thousands of channels, and an empty
        # deque takes 800 bytes.
        self._former: deque[int] | None = None
        self.members = Members()  # a delivery reads their `count`, because `len()` of the queue would be one more call
        self.passed = 0  # entries of what was taken out that somebody met on the way to the first position

    def __len__(self) -> int:
        return self.members.count

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.members.sequences

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (sequence, attempts so far) of each position."""
        return filter(None, _still_retried(chain(self._former or (), self._queue), self.members))

    def copy(self) -> Iterator[tuple[int, int]]:
        """Return an iterator over a copy of the present positions, in ascending order.

        It has no copy of a million entries, over which the garbage collector would go.
        """
        return _with_attempts(self.members.sequences.copy(), self.members.attempts.copy())

    def sequences(self) -> Iterator[list[int]]:
        """Return the sequences of all present positions, in pieces."""
        return in_pieces(self.members.sequences)

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return those of these sequences that are here."""
        return self.members.sequences & sequences

    def lowest(self) -> int | None:
        """Return the lowest sequence; None: there is none."""
        return self.members.sequences.min() if self.members.count else None

    @property
    def entries(self) -> int:
        """How many positions `turn` has to see so that it has seen all; some of them were taken out."""
        return len(self._former or ()) + len(self._queue)

    def add(self, sequence: int, attempts: int) -> None:
        self._queue.append(self._packed(sequence, attempts))
        if self._former:
            self._drop_some(_DROPPED_WITH_EACH)

    def _packed(self, sequence: int, attempts: int) -> int:
        """Note a position, and return its entry."""
        attempts &= _ATTEMPTS_MASK
        generation = self.members.add(sequence, attempts)
        return (generation << _SEQUENCE_BITS | sequence) << _ATTEMPTS_BITS | attempts

    def turn(self, count: int, wanted: Container[int]) -> list[int]:
        """Move the first `count` entries to the end, but take out those that are wanted and were never delivered.

        Whoever turns as many as there were `entries` at first, in several calls, has seen all of them, whatever comes
        and goes meanwhile.
        """
        taken: list[int] = []
        for _ in range(min(count, self.entries)):
            packed = (self._former or self._queue).popleft()
            if not self._is_here(packed):
                continue
            sequence = _retried(packed)
            if packed & _ATTEMPTS_MASK or sequence not in wanted:
                self._queue.append(packed)
            else:
                taken.append(sequence)
                self.members.remove(sequence, sequence + 1, 0)
        if not self.members.count:
            self.clear()
        return taken

    def attempts_of(self, sequence: int) -> int:
        """Return how often one of these was delivered so far."""
        return self.members.attempts.get(sequence)

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out those of the wanted sequences that are here, and return them."""
        if here := self.members.take_out(wanted):
            self._drop_some(min(_DROPPED_WITH_EACH * len(here), _DROPPED_AT_ONCE))
        return here

    def _drop_some(self, most: int) -> None:
        """Look at so many entries, from the last one to the first, and drop those that were taken out, if these are many."""
        count = self.members.count
        if not count:
            self.clear()
        elif not self._former and (len(self._queue) - count) * 2 > len(self._queue) + _FEW:
            self._former, self._queue = self._queue, deque()
        former, queue = self._former, self._queue
        if not former:
            return
        if most <= _FEW:
            for _ in range(min(most, len(former))):
                packed = former.pop()
                if self._is_here(packed):
                    queue.appendleft(packed)
            return
        some = [former.pop() for _ in range(min(most, len(former)))]
        generations = [packed >> (_SEQUENCE_BITS + _ATTEMPTS_BITS) for packed in some]
        sequences = [packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK for packed in some]
        queue.extendleft(compress(some, self.members.which_count(sequences, generations)))

    def replace_before(self, end: int, positions: Sequence[tuple[int, int]]) -> None:
        """Replace all positions before `end` by these (sequence, attempts), which come first."""
        members = self.members
        taken = members.take_out(between(members.sequences, 0, end))
        if not members.count:
            self.clear()
        sequences = [sequence for sequence, _ in positions]
        attempts = [number & _ATTEMPTS_MASK for _, number in positions]
        entries = [
            (generation << _SEQUENCE_BITS | sequence) << _ATTEMPTS_BITS | number
            for sequence, number, generation in zip(
                sequences, attempts, members.add_all(sequences, attempts), strict=True
            )
        ]
        (self._former or self._queue).extendleft(reversed(entries))
        self._drop_some(_dropped_with(len(taken) + len(entries), self.entries))

    def peek(self) -> tuple[int, int]:
        packed = self._first()[0]
        return _retried(packed), packed & _ATTEMPTS_MASK

    def next_ones(self, count: int) -> list[tuple[int, int]]:
        """Return about the first `count` positions, as (sequence, attempts so far)."""
        if not self.members.count:
            return []
        queue = self._first()
        rest = self._queue if queue is self._former else ()
        some = islice(chain(queue, rest), count + _LEFT_OVER_AT_ONCE)
        return list(islice(filter(None, _still_retried(some, self.members)), count))

    def pop_run(self, limit: int, end: int) -> tuple[int, int, int]:
        """Take out up to `limit` neighbours below `end` with equal attempts. Return (first, end, attempts)."""
        queue = self._first()
        packed = queue.popleft()
        first, attempts = _retried(packed), packed & _ATTEMPTS_MASK
        stop = min(first + limit, end)
        sequence = first + 1
        step = 1 << _ATTEMPTS_BITS
        while sequence < stop and queue and queue[0] == packed + step:
            if self.members.generations and not self._is_here(queue[0]):
                break
            packed = queue.popleft()
            sequence += 1
        self.members.remove(first, sequence, attempts)
        if not self.members.count:
            self.clear()
        return first, sequence, attempts

    def _first(self) -> deque[int]:
        """Return the queue that has the first position as its first entry. There is one.

        Where thousands of entries before it were taken out, the lowest sequence has its turn instead: nobody can wait
        for the end of a search.
        """
        queue = self._former or self._queue
        if not self.members.generations:
            return queue
        for _ in range(_LEFT_OVER_AT_ONCE):
            if self._is_here(queue[0]):
                return queue
            queue.popleft()
            self.passed += 1
            if not queue:
                queue = self._queue
        lowest = self.members.sequences.min()
        attempts = self.members.attempts.get(lowest)
        self.take_out(BitMap64((lowest,)))
        queue = self._former or self._queue
        queue.appendleft(self._packed(lowest, attempts))
        return queue

    def _is_here(self, packed: int) -> bool:
        """Return whether an entry still counts: it was not taken out."""
        return self.members.counts(_retried(packed), packed >> (_SEQUENCE_BITS + _ATTEMPTS_BITS))

    def clear(self) -> None:
        if self.entries > MANY:
            self._leftovers.add(self._queue, self._former or [])
            self._queue = deque()
        else:
            self._queue.clear()
        self._former = None
        self.members.clear()


class DeferredQueue:
    """Positions that become deliverable at a time, the earliest first. Times are in microseconds.

    A publish may defer a million messages at once, and so may a topic that begins to flow; making entries of them takes
    a second. So they wait as a *run*, from which `unpack` takes some thousands each time.

        run ──► heap of up to 1,023 ──► sorted blocks of 1,024 ──► due
                          ▲                     │
                          └── the last 128 ◄────┘

    A snapshot needs a million entries as of one moment, and copying them takes 9 to 30 ms. So the entries of a block
    never change: the snapshot takes the blocks themselves, and copies only the heap. What changes is the place of the
    next entry of each block. When half of the entries are behind that place, a shorter block replaces this one, because
    memory is to be given back; and the last entries go back to the heap, because many small blocks would be as slow to
    copy as many entries.
    """

    __slots__ = ("_blocks", "_former", "_heap", "_in_blocks", "_leftovers", "_looks", "_members", "_runs")

    def __init__(self, reclaimer: Reclaimer) -> None:
        self._leftovers = reclaimer
        self._heap: list[int] = []  # due, sequence, attempts, generation
        self._blocks: list[_Block] = []  # a heap as well
        self._former: list[_Block] = []  # another one, while its blocks are looked through for what was taken out
        self._in_blocks = 0  # entries that are still to come in both
        self._looks = 0  # at entries of former blocks that are owed; below 0, as the last block had more of them
        # Of messages that were never here before, nor delivered. None: there was no run yet.
        self._runs: deque[_Run] | None = None
        self._members = Members()

    def __len__(self) -> int:
        return self._members.count

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (due, sequence, attempts so far) of each position, in no order."""
        entries = chain(self._heap, _taken_from([*self._blocks, *self._former]), _unpacked(self._runs or ()))
        return filter(None, _still_deferred(entries, self._members))

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._members.sequences

    def has_any(self, start: int, end: int) -> bool:
        """Return whether one of the sequences [start, end) is among them."""
        here = self._members.sequences
        return start in here or (end - start > 1 and here.range_cardinality(start, end) > 0)

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return those of these sequences that are here."""
        return self._members.sequences & sequences

    def copy(self) -> Iterator[tuple[int, int, int] | None]:
        """Return an iterator over the positions as of this call.

        Now and then it yields None, so that others can have their turn: thousands of entries in a row may be left over.
        """
        blocks = [*self._blocks, *self._former]
        entries = chain(self._heap.copy(), _taken_from(blocks), _unpacked(list(self._runs or ())))
        return _still_deferred(entries, self._members.copy())

    def sequences(self) -> Iterator[list[int]]:
        """Return the sequences of all present positions, in pieces."""
        return in_pieces(self._members.sequences)

    def positions_of(self, wanted: BitMap64) -> list[tuple[int, int, int]]:
        """Return (due, sequence, attempts so far) of those of the wanted sequences that are here, in no order.

        This looks at all entries, a hundred thousand in some milliseconds.
        """
        entries = chain(self._heap, _taken_from([*self._blocks, *self._former]), _unpacked(self._runs or ()))
        found = [packed for packed in entries if packed >> _REST_BITS & _SEQUENCE_MASK in wanted]
        return list(filter(None, _still_deferred(found, self._members)))

    def lowest(self) -> int | None:
        """Return the lowest sequence; None: there is none."""
        return self._members.sequences.min() if self._members.count else None

    def earliest(self, count: int, after: tuple[int, int] = (-1, -1)) -> Iterator[tuple[int, int, int] | None]:
        """Yield the first positions behind a (due, sequence), in the order in which they become due.

        Yield None now and then, so that others can have their turn. What they add meanwhile may be
        missing, and what they move may still have its former time.
        """
        bound = (after[0] << _SEQUENCE_BITS | after[1] + 1) << _REST_BITS if after[0] >= 0 else 0
        while self._runs:
            self.unpack(_UNPACKED_AT_ONCE)
            yield None
        all_blocks = [(0, 0, sorted(self._heap)), *self._blocks, *self._former]
        blocks: list[_Block] = []
        for number, (_, place, block) in enumerate(all_blocks, 1):
            place = bisect_left(block, bound, place)
            if place < len(block):
                blocks.append((block[place], place, block))
            if number % _BLOCKS_AT_ONCE == 0:
                yield None
        heapify(blocks)
        left = _WALKED_AT_ONCE
        while blocks and count:
            packed = _next_of(blocks)
            if self._is_here(packed):
                yield _unpack_deferred(packed)
                count -= 1
            left -= 1
            if not left:
                left = _WALKED_AT_ONCE
                yield None

    def _is_here(self, packed: int) -> bool:
        """Return whether an entry of the heap still counts: it was not taken out."""
        return self._members.counts(_deferred(packed), packed & _GENERATION_MASK)

    @property
    def entries(self) -> int:
        """How many entries there are, with those of what was taken out."""
        return len(self._heap) + self._in_blocks

    def add(self, due: int, sequence: int, attempts: int) -> None:
        heappush(self._heap, self._packed(due, sequence, attempts))
        if len(self._heap) >= _BLOCK:
            self._push_all([])
        if self._former:
            self._drop_some(_DROPPED_WITH_EACH)

    def add_runs(self, at: int, pieces: Iterable[list[tuple[int, int, int]]], sequences: BitMap64) -> None:
        """Add these sequences of batches, as (start, count, delay in ms), whose delays begin at a time.

        They were never here before, nor delivered. `unpack` has to be called soon. Whoever else has the batches or the
        bitmap must not change them any more.
        """
        if self._runs is None:
            self._runs = deque()
        self._runs.extend([(at, batches, sequences, 0, 0) for batches in pieces if batches])
        self._members.sequences |= sequences
        self._members.count += len(sequences)

    @property
    def has_runs(self) -> bool:
        return bool(self._runs)

    def unpack(self, most: int) -> int:
        """Make entries of up to so many messages of runs. Return how many were looked at."""
        left, entries = most, list[int]()
        while left > 0 and self._runs:
            at, batches, sequences, place, passed = self._runs.popleft()
            start, count, delay_ms = batches[place]
            stop = min(count, passed + left)
            left -= stop - passed
            first = _first_of(at, delay_ms)
            for sequence in range(start + passed, start + stop):
                packed = first | sequence << _REST_BITS
                if sequence in sequences and self._is_here(packed):
                    entries.append(packed)
            if stop < count:
                self._runs.appendleft((at, batches, sequences, place, stop))
            elif place + 1 < len(batches):
                self._runs.appendleft((at, batches, sequences, place + 1, 0))
        self._push_all(entries)
        return most - left

    def fill(self, entries: Iterator[tuple[int, int, int]]) -> None:
        """Add many (due, sequence, attempts) at once, as recovery has them."""
        entries = iter(entries)
        while some := [self._packed(*it) for it in islice(entries, _BLOCK)]:
            self._push_all(some)

    def _push_all(self, entries: list[int]) -> None:
        """Push entries onto the heap, and make blocks of those that it has no room for."""
        self._heap += entries
        if len(self._heap) < _BLOCK:
            heapify(self._heap)
            return
        self._heap.sort()
        stop = len(self._heap) - len(self._heap) % _BLOCK
        for start in range(0, stop, _BLOCK):
            block = self._heap[start : start + _BLOCK]
            heappush(self._blocks, (block[0], 0, block))
        self._in_blocks += stop
        self._heap = self._heap[stop:]

    def _packed(self, due: int, sequence: int, attempts: int) -> int:
        """Note a position, and return its entry."""
        attempts &= _ATTEMPTS_MASK
        generation = self._members.add(sequence, attempts)
        return ((due << _SEQUENCE_BITS | sequence) << _ATTEMPTS_BITS | attempts) << _GENERATION_BITS | generation

    def attempts_of(self, sequence: int) -> int:
        """Return how often one of these was delivered so far."""
        return self._members.attempts.get(sequence)

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out those of the wanted sequences that are here, before their time, and return them."""
        if here := self._members.take_out(wanted):
            self._drop_some(min(_DROPPED_WITH_EACH * len(here), _DROPPED_AT_ONCE))
        return here

    def _drop_some(self, most: int) -> None:
        """Look at about so many entries, block by block, and drop those that were taken out, if these are many."""
        count, entries = self._members.count, self.entries
        if not count:
            self.clear()
            return
        if not self._former:
            if (entries - count) * 2 <= entries + _FEW:
                return
            self._former, self._blocks, self._looks = self._blocks, [], 0
            some, self._heap = self._heap, []
            self._push_again(some)
        self._looks += most
        while self._looks > 0 and self._former:
            _, place, block = self._former.pop()  # a heap stays one when it loses its last
            self._looks -= len(block) - place
            self._in_blocks -= len(block) - place
            self._push_again(block[place:])

    def _push_again(self, entries: list[int]) -> None:
        """Push entries onto the heap, without those that were taken out."""
        if self._members.generations:
            generations = [packed & _GENERATION_MASK for packed in entries]
            sequences = [packed >> _REST_BITS & _SEQUENCE_MASK for packed in entries]
            entries = list(compress(entries, self._members.which_count(sequences, generations)))
        self._push_all(entries)

    def replace_before(self, end: int, positions: Sequence[tuple[int, int, int]]) -> None:
        """Replace all positions before `end` by these (due, sequence, attempts)."""
        members = self._members
        taken = members.take_out(between(members.sequences, 0, end))
        if not members.count:
            self.clear()
        sequences = [sequence for _, sequence, _ in positions]
        attempts = [number & _ATTEMPTS_MASK for _, _, number in positions]
        generations = members.add_all(sequences, attempts)
        self._push_all(
            [
                (due << _SEQUENCE_BITS | sequence) << _REST_BITS | number << _GENERATION_BITS | generation
                for (due, sequence, _), number, generation in zip(positions, attempts, generations, strict=True)
            ]
        )
        self._drop_some(_dropped_with(len(taken) + len(positions), self.entries))

    def next_due(self) -> int | None:
        """Return when to look next: when the first position is due, or one was that has been taken out.

        This leaves runs out.
        """
        blocks = self._first()
        packed = blocks[0][0] if blocks else self._heap[0] if self._heap else None
        return packed >> (_SEQUENCE_BITS + _REST_BITS) if packed is not None else None

    def _first(self) -> list[_Block]:
        """Return the blocks with the earliest entry; none: the heap has it, or there is no entry."""
        blocks = self._blocks
        if self._former and (not blocks or self._former[0] < blocks[0]):
            blocks = self._former
        return _NO_BLOCKS if blocks and self._heap and self._heap[0] < blocks[0][0] else blocks

    def pop_due(self, until: int, most: int) -> Iterator[tuple[int, int]]:
        """Take out what is due at `until` or before, and yield its (sequence, attempts), the earliest first.

        This looks at `most` entries, or fewer where it has shortened very many blocks. Afterwards `next_due` tells whether
        there are more.
        """
        bound = (until + 1) << (_SEQUENCE_BITS + _REST_BITS)
        shortening = 0
        for _ in range(most):
            if shortening > most:
                break
            blocks = self._first()
            if blocks:
                packed, place, block = blocks[0]
                if packed >= bound:
                    break
                place += 1
                self._in_blocks -= 1
                if 2 * place < len(block):
                    heapreplace(blocks, (block[place], place, block))
                else:
                    shortening += self._shorten(blocks, block[place:])
            else:
                if not self._heap or self._heap[0] >= bound:
                    break
                packed = heappop(self._heap)
            if not self._is_here(packed):
                continue
            sequence, attempts = _deferred(packed), packed >> _GENERATION_BITS & _ATTEMPTS_MASK
            self._members.remove(sequence, sequence + 1, attempts)
            yield sequence, attempts
        if not self._members.count:
            self.clear()

    def _shorten(self, blocks: list[_Block], rest: list[int]) -> int:
        """Replace the first of these blocks by the rest of its entries. Return as how many entries that counts."""
        if len(rest) > _SMALL_BLOCK:
            heapreplace(blocks, (rest[0], 0, rest))
            return len(rest) // _COPIED_AS_ONE
        heappop(blocks)
        self._in_blocks -= len(rest)
        self._push_again(rest)
        return len(rest)

    def clear(self) -> None:
        if self._in_blocks:
            self._leftovers.add_blocks([block for _, _, block in chain(self._blocks, self._former)])
            self._blocks, self._former, self._in_blocks = [], [], 0
        self._heap.clear()
        self._leftovers.add_blocks([batches for _, batches, _, _, _ in self._runs or ()])
        self._runs = None
        self._members.clear()


def _dropped_with(changed: int, entries: int) -> int:
    """Return how many of the entries are looked at where so many positions are replaced."""
    return min(_DROPPED_WITH_EACH * changed, max(_DROPPED_WITH_MANY, entries // _DROPPED_PART))


def _with_attempts(sequences: BitMap64, attempts: AttemptCounts) -> Iterator[tuple[int, int]]:
    for sequence in sequences:
        yield sequence, attempts.get(sequence)


def _retried(packed: int) -> int:
    """Return the sequence of an entry of a queue."""
    return packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK


def _deferred(packed: int) -> int:
    """Return the sequence of an entry of a heap."""
    return packed >> _REST_BITS & _SEQUENCE_MASK


def _still_retried(entries: Iterable[int], members: Members) -> Iterator[tuple[int, int] | None]:
    """Yield the positions of these entries, and None after each few thousand entries that were taken out."""
    passed = 0
    for packed in entries:
        sequence = _retried(packed)
        if members.counts(sequence, packed >> (_SEQUENCE_BITS + _ATTEMPTS_BITS)):
            yield sequence, packed & _ATTEMPTS_MASK
            continue
        passed += 1
        if passed % _PASSED_OVER == 0:
            yield None


def _still_deferred(entries: Iterable[int], members: Members) -> Iterator[tuple[int, int, int] | None]:
    """Yield the positions of these entries, and None after each few thousand entries that were taken out."""
    passed = 0
    for packed in entries:
        if members.counts(_deferred(packed), packed & _GENERATION_MASK):
            yield _unpack_deferred(packed)
            continue
        passed += 1
        if passed % _PASSED_OVER == 0:
            yield None


def _next_of(blocks: list[_Block]) -> int:
    """Move on to the next entry of a heap of blocks. Return the one before it."""
    packed, place, block = blocks[0]
    place += 1
    if place < len(block):
        heapreplace(blocks, (block[place], place, block))
    else:
        heappop(blocks)
    return packed


def _taken_from(blocks: list[_Block]) -> Iterator[int]:
    """Yield the entries of these blocks, and let go of each block: to free a million at once takes too long."""
    while blocks:
        _, place, block = blocks.pop()
        yield from islice(block, place, None)


def _unpacked(runs: Iterable[_Run]) -> Iterator[int]:
    """Yield what would be on the heap instead of these runs."""
    for at, batches, sequences, place, passed in runs:
        for start, count, delay_ms in islice(batches, place, None):
            first = _first_of(at, delay_ms)
            for sequence in range(start + passed, start + count):
                if sequence in sequences:  # otherwise it was taken back before, and has no entry
                    yield first | sequence << _REST_BITS
            passed = 0


def _first_of(at: int, delay_ms: int) -> int:
    """Return what the entries of a batch of a run have in common: all but the sequence."""
    return (at + delay_ms * 1000 << _SEQUENCE_BITS) << _REST_BITS


def _unpack_deferred(packed: int) -> tuple[int, int, int]:
    return packed >> (_SEQUENCE_BITS + _REST_BITS), _deferred(packed), packed >> _GENERATION_BITS & _ATTEMPTS_MASK
