"""The sequences a channel tracks besides its cursor: skip ranges, retries and deferrals, as integers and bitmaps.

We pack each entry into one integer, because that costs 36 to 48 bytes and the garbage collector never visits it. A
tuple of three costs 150 bytes, so a million deferred messages would take 100 MB more. A bitmap costs two bytes per
sequence, and much less where the sequences are neighbours.

**Removing from the middle.** We can't search a queue or a heap of a million entries within a turn. So a bitmap says
*which* sequences are here, and the queue or heap only *in which order*. To take a sequence out, we clear its bit and
leave its entry, which is now *stale*; we drop it when we come across it. The sequence may come back before that, so
each entry also has a *generation*: how often its sequence had been taken out before. For example, 7 is deferred until
noon, and then moved to midnight:

    7 until noon, generation 0        stale, because 7 has been taken out once
    7 until midnight, generation 1    valid

When there are too many stale entries, each call that changes something drops a few more of them: it moves the valid
entries from the *former* queue, or the former blocks, to new ones.
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

_ATTEMPTS_BITS: Final = 16  # as on the wire, where attempts wrap, too
_ATTEMPTS_MASK: Final = (1 << _ATTEMPTS_BITS) - 1
_SEQUENCE_BITS: Final = 64
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1
_GENERATION_BITS: Final = 40  # of a deferral; no sequence is taken out and put back that often
_GENERATION_MASK: Final = (1 << _GENERATION_BITS) - 1
_REST_BITS: Final = _ATTEMPTS_BITS + _GENERATION_BITS
_PIECE: Final = 4_000  # sequences; copying them takes a fraction of a millisecond
_BLOCK: Final = 1_024  # entries; sorting them takes a fraction of a millisecond
_SMALL_BLOCK: Final = 128  # entries; when a block is down to this many, they go back to the heap
_COPIED_AS_ONE: Final = 8  # copying this many entries takes as long as taking one out
_BLOCKS_AT_ONCE: Final = 2_000  # blocks to search for the start of a page between two yields; a millisecond or two
_WALKED_AT_ONCE: Final = 1_000  # entries of a page between two yields; a millisecond
_FEW: Final = 64  # stale entries; up to this many aren't worth dropping
# While there are too many stale entries, we check this many for each one that is added or taken out. So there are never
# more than about twice as many entries as positions.
_DROPPED_WITH_EACH: Final = 4
_DROPPED_AT_ONCE: Final = 8_000  # entries to check in one call; a few milliseconds
# `replace_before` may check more, because it changes many positions: up to this many, or this fraction of all entries.
# With the fraction, stale entries don't add up without end when one backlog after another is restored.
_DROPPED_WITH_MANY: Final = 12_000
_DROPPED_PART: Final = 4
_UNPACKED_AT_ONCE: Final = 5_000  # messages of a run; a few milliseconds
_LEFT_OVER_AT_ONCE: Final = 5_000  # stale entries to skip while looking for the first valid one
_PASSED_OVER: Final = 2_000  # stale entries between two yields; a millisecond or two

# Batches that were deferred together: when their delays begin, in microseconds; (start, count, delay in ms) of each;
# the sequences that were deferred; and which batch, and which message in it, to put onto the heap next. Channels share
# the batches and the bitmap, so these never change.
_Run = tuple[int, list[tuple[int, int, int]], BitMap64, int, int]

# The next entry, its index, and all entries in ascending order. Iterators share the list, so it never changes.
_Block = tuple[int, int, list[int]]
_NO_BLOCKS: Final[list[_Block]] = []


def ranges_in(sequences: BitMap64) -> Iterator[tuple[int, int]]:
    """Return these sequences as ascending [start, end) ranges. The call itself is cheap: it only combines bitmaps."""
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
    """Return the sequences that lie in [start, end). The bounds may be far from the nearest sequence."""
    found = sequences.copy()
    found.remove_range(0, start)
    if found and found.max() >= end:
        found.remove_range(end, found.max() + 1)
    return found


def in_pieces(sequences: BitMap64) -> Iterator[list[int]]:
    """Return a copy of these sequences, in lists of a few thousand."""
    rest = iter(sequences.copy())
    return iter(lambda: list(islice(rest, _PIECE)), [])


class SkipRanges:
    """Sequences ahead of a cursor that the cursor passes over."""

    __slots__ = ("_covered", "total")

    def __init__(self, covered: BitMap64 | None = None) -> None:
        self._covered = BitMap64() if covered is None else covered
        self.total = len(self._covered)  # number of sequences in all ranges

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Return the current ranges as [start, end), in ascending order."""
        return ranges_in(self._covered)

    def __len__(self) -> int:
        return number_of_ranges(self._covered)

    def copy(self) -> SkipRanges:
        return SkipRanges(self._covered.copy())

    def add(self, start: int, end: int) -> None:
        """Cover the sequences [start, end), none of which is covered yet."""
        if start < end:
            self._covered.add_range(start, end)
            self.total += end - start

    def cover(self, sequences: BitMap64) -> None:
        """Cover these sequences, none of which is covered yet."""
        self._covered |= sequences
        self.total += len(sequences)

    def covers(self, sequence: int) -> bool:
        return sequence in self._covered

    def free_among(self, sequences: BitMap64) -> BitMap64:
        """Return the sequences that no range covers."""
        return sequences - self._covered

    def behind(self, sequence: int) -> BitMap64:
        """Return the covered sequences from `sequence` on."""
        covered = self._covered.copy()
        covered.remove_range(0, sequence)
        return covered

    def add_newest(self, count: int, floor: int, end: int) -> list[tuple[int, int]]:
        """Cover the `count` newest sequences of [floor, end) that aren't covered yet; no range goes beyond `end`.

        Return them as ranges, newest first.
        """
        free = bitmap_of(floor, end) - self._covered
        if len(free) > count:
            free = free[len(free) - count :] if count else BitMap64()
        self._covered |= free
        self.total += len(free)
        return list(ranges_in(free))[::-1]

    def free_ranges(self, floor: int, end: int) -> list[tuple[int, int]]:
        """Return the uncovered parts of [floor, end) as ascending ranges."""
        return list(ranges_in(bitmap_of(floor, end) - self._covered))

    def pass_over(self, sequence: int) -> int:
        """Return where a cursor at `sequence` ends up after skipping the range there. Drop all ranges before that."""
        covered = self._covered
        if not self.total or covered.min() > sequence:
            return sequence
        stop = self._end_of_range(sequence) if sequence in covered else sequence
        self.total -= covered.range_cardinality(0, stop)
        covered.remove_range(0, stop)
        return stop

    def _end_of_range(self, sequence: int) -> int:
        """Return the end of the range that covers a sequence, by galloping: the steps double, and then halve."""
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
        """Set the number of a sequence, which is 0 so far."""
        place = 0
        while number:
            if place == len(self._bits):
                self._bits += (BitMap64(),)
            if number & 1:
                self._bits[place].add(sequence)
            number >>= 1
            place += 1

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
        """Set the numbers of these sequences, which are all 0 so far."""
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
        """Return for each of these entries whether it is valid. Much faster than thousands of calls of `counts`."""
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
        """Return a copy for checking entries. It has no attempts, because the entries have them."""
        copied = Members()
        copied.sequences, copied.generations = self.sequences.copy(), self.generations.copy()
        return copied

    def clear(self) -> None:
        self.sequences.clear()
        self.attempts.clear()
        self.generations.clear()
        self.count = 0


class RetryQueue:
    """Messages that wait for redelivery, first come first served. A *position* is a sequence with its attempts."""

    __slots__ = ("_former", "_queue", "_reclaimer", "members", "passed")

    def __init__(self, reclaimer: Reclaimer) -> None:
        self._reclaimer = reclaimer
        self._queue: deque[int] = deque()  # generation, sequence, attempts
        # The entries before the ones in `_queue`, while we drop stale ones. None instead of an empty deque, because
        # that takes 800 bytes, and there are thousands of channels.
        self._former: deque[int] | None = None
        self.members = Members()  # deliveries read `members.count`, because `len()` of the queue would be one more call
        self.passed = 0  # stale entries dropped while looking for the first position; channels stop after too many

    def __len__(self) -> int:
        return self.members.count

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.members.sequences

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (sequence, attempts so far) of each position."""
        return filter(None, _valid_retries(chain(self._former or (), self._queue), self.members))

    def copy(self) -> Iterator[tuple[int, int]]:
        """Return an iterator over the positions as of this call, in ascending order.

        It copies only bitmaps: a copy of a million entries would be a list that the garbage collector goes through.
        """
        return _with_attempts(self.members.sequences.copy(), self.members.attempts.copy())

    def sequences(self) -> Iterator[list[int]]:
        """Return the current sequences, in lists of a few thousand."""
        return in_pieces(self.members.sequences)

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return the sequences that are in this queue."""
        return self.members.sequences & sequences

    def lowest(self) -> int | None:
        """Return the lowest sequence, or None if the queue is empty."""
        return self.members.sequences.min() if self.members.count else None

    @property
    def entries(self) -> int:
        """The number of entries, including stale ones: `turn` has to go through this many to see them all."""
        return len(self._former or ()) + len(self._queue)

    def add(self, sequence: int, attempts: int) -> None:
        self._queue.append(self._add_member(sequence, attempts))
        if self._former:
            self._drop_some(_DROPPED_WITH_EACH)

    def _add_member(self, sequence: int, attempts: int) -> int:
        """Add a position to the members, and return its entry."""
        attempts &= _ATTEMPTS_MASK
        generation = self.members.add(sequence, attempts)
        return (generation << _SEQUENCE_BITS | sequence) << _ATTEMPTS_BITS | attempts

    def turn(self, count: int, wanted: Container[int]) -> list[int]:
        """Move the first `count` entries to the end, but take out wanted messages that were never delivered.

        Call it until `count` adds up to the initial `entries` to visit every entry, even if others are added or removed
        in between.
        """
        taken: list[int] = []
        for _ in range(min(count, self.entries)):
            packed = (self._former or self._queue).popleft()
            if not self._is_valid(packed):
                continue
            sequence = _retry_sequence(packed)
            if packed & _ATTEMPTS_MASK or sequence not in wanted:
                self._queue.append(packed)
            else:
                taken.append(sequence)
                self.members.remove(sequence, sequence + 1, 0)
        if not self.members.count:
            self.clear()
        return taken

    def attempts_of(self, sequence: int) -> int:
        """Return the attempts of this message so far."""
        return self.members.attempts.get(sequence)

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out the wanted sequences that are in this queue, and return them."""
        if here := self.members.take_out(wanted):
            self._drop_some(min(_DROPPED_WITH_EACH * len(here), _DROPPED_AT_ONCE))
        return here

    def _drop_some(self, most: int) -> None:
        """Check up to `most` entries, from the last to the first, and drop the stale ones, if there are many."""
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
                if self._is_valid(packed):
                    queue.appendleft(packed)
            return
        some = [former.pop() for _ in range(min(most, len(former)))]
        generations = [packed >> (_SEQUENCE_BITS + _ATTEMPTS_BITS) for packed in some]
        sequences = [packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK for packed in some]
        queue.extendleft(compress(some, self.members.which_count(sequences, generations)))

    def replace_before(self, end: int, positions: Sequence[tuple[int, int]]) -> None:
        """Replace all positions before `end` with these (sequence, attempts), which go to the front."""
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
        return _retry_sequence(packed), packed & _ATTEMPTS_MASK

    def next_ones(self, count: int) -> list[tuple[int, int]]:
        """Return about the first `count` positions, as (sequence, attempts so far)."""
        if not self.members.count:
            return []
        queue = self._first()
        rest = self._queue if queue is self._former else ()
        some = islice(chain(queue, rest), count + _LEFT_OVER_AT_ONCE)
        return list(islice(filter(None, _valid_retries(some, self.members)), count))

    def pop_run(self, limit: int, end: int) -> tuple[int, int, int]:
        """Take out up to `limit` neighbours before `end` with equal attempts. Return (first, end, attempts)."""
        queue = self._first()
        packed = queue.popleft()
        first, attempts = _retry_sequence(packed), packed & _ATTEMPTS_MASK
        stop = min(first + limit, end)
        sequence = first + 1
        step = 1 << _ATTEMPTS_BITS  # to the entry of the next sequence with the same generation and attempts
        while sequence < stop and queue and queue[0] == packed + step:
            if self.members.generations and not self._is_valid(queue[0]):
                break
            packed = queue.popleft()
            sequence += 1
        self.members.remove(first, sequence, attempts)
        if not self.members.count:
            self.clear()
        return first, sequence, attempts

    def _first(self) -> deque[int]:
        """Return the deque that starts with the first position. Must not be called on an empty queue.

        After thousands of stale entries we stop searching and move the lowest sequence to the front instead, because
        the rest of the search could take longer than a turn may.
        """
        queue = self._former or self._queue
        if not self.members.generations:  # nothing was taken out, so nothing is stale
            return queue
        for _ in range(_LEFT_OVER_AT_ONCE):
            if self._is_valid(queue[0]):
                return queue
            queue.popleft()
            self.passed += 1
            if not queue:
                queue = self._queue
        lowest = self.members.sequences.min()
        attempts = self.members.attempts.get(lowest)
        self.take_out(BitMap64((lowest,)))
        queue = self._former or self._queue
        queue.appendleft(self._add_member(lowest, attempts))
        return queue

    def _is_valid(self, packed: int) -> bool:
        """Return whether an entry is not stale."""
        return self.members.counts(_retry_sequence(packed), packed >> (_SEQUENCE_BITS + _ATTEMPTS_BITS))

    def clear(self) -> None:
        if self.entries > MANY:
            self._reclaimer.add(self._queue, self._former or [])
            self._queue = deque()
        else:
            self._queue.clear()
        self._former = None
        self.members.clear()


class DeferredQueue:
    """Messages that wait for their time, earliest first. Times are in microseconds.

    One publish may defer a million messages, and so may a topic that releases its early deferrals. Making their entries
    takes a second. So they wait as a *run*, and each call of `unpack` makes entries of some thousands.

        run ──► heap of up to 1,023 ──► sorted blocks of 1,024 ──► due
                          ▲                     │
                          └── the last 128 ◄────┘

    A snapshot needs all entries as of one moment, and copying a million takes 9 to 30 ms. So the list of a block never
    changes: the snapshot shares the blocks, and copies only the heap. To take an entry out of a block, we move on the
    index of its next entry. Once half of a block is used up, we replace it with a shorter one to free memory. The last
    128 entries go back to the heap, because copying many small blocks would be as slow as copying many entries.
    """

    __slots__ = ("_blocks", "_checks_owed", "_former", "_heap", "_in_blocks", "_members", "_reclaimer", "_runs")

    def __init__(self, reclaimer: Reclaimer) -> None:
        self._reclaimer = reclaimer
        self._heap: list[int] = []  # due, sequence, attempts, generation
        self._blocks: list[_Block] = []  # a heap, too
        self._former: list[_Block] = []  # another heap, while we drop the stale entries of its blocks
        self._in_blocks = 0  # entries left in the blocks of both
        self._checks_owed = 0  # former entries still to check; negative if the last block had more than we had to check
        # Their messages were never here before, and never delivered. None: there was no run yet.
        self._runs: deque[_Run] | None = None
        self._members = Members()

    def __len__(self) -> int:
        return self._members.count

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (due, sequence, attempts so far) of each position, in no order."""
        entries = chain(self._heap, _entries_of([*self._blocks, *self._former]), _entries_of_runs(self._runs or ()))
        return filter(None, _valid_deferrals(entries, self._members))

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._members.sequences

    def has_any(self, start: int, end: int) -> bool:
        """Return whether any sequence of [start, end) is deferred."""
        here = self._members.sequences
        return start in here or (end - start > 1 and here.range_cardinality(start, end) > 0)

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return the sequences that are deferred."""
        return self._members.sequences & sequences

    def copy(self) -> Iterator[tuple[int, int, int] | None]:
        """Return an iterator over the positions as of this call.

        It also yields None now and then, so that you can let others have their turn: thousands of entries in a row may
        be stale.
        """
        blocks = [*self._blocks, *self._former]
        entries = chain(self._heap.copy(), _entries_of(blocks), _entries_of_runs(list(self._runs or ())))
        return _valid_deferrals(entries, self._members.copy())

    def sequences(self) -> Iterator[list[int]]:
        """Return the current sequences, in lists of a few thousand."""
        return in_pieces(self._members.sequences)

    def positions_of(self, wanted: BitMap64) -> list[tuple[int, int, int]]:
        """Return (due, sequence, attempts so far) of the wanted sequences that are deferred, in no order.

        It goes through all entries: a few milliseconds for a hundred thousand.
        """
        entries = chain(self._heap, _entries_of([*self._blocks, *self._former]), _entries_of_runs(self._runs or ()))
        found = [packed for packed in entries if packed >> _REST_BITS & _SEQUENCE_MASK in wanted]
        return list(filter(None, _valid_deferrals(found, self._members)))

    def lowest(self) -> int | None:
        """Return the lowest sequence, or None if none is deferred."""
        return self._members.sequences.min() if self._members.count else None

    def earliest(self, count: int, after: tuple[int, int] = (-1, -1)) -> Iterator[tuple[int, int, int] | None]:
        """Yield the next `count` positions after a (due, sequence), in the order in which they become due.

        It also yields None now and then, so that you can let others have their turn. If they add positions, these may
        be missing here; if they move some, these may still have their former time.
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
            if self._is_valid(packed):
                yield _unpack_deferred(packed)
                count -= 1
            left -= 1
            if not left:
                left = _WALKED_AT_ONCE
                yield None

    def _is_valid(self, packed: int) -> bool:
        """Return whether an entry is not stale."""
        return self._members.counts(_deferred_sequence(packed), packed & _GENERATION_MASK)

    @property
    def entries(self) -> int:
        """The number of entries, including stale ones."""
        return len(self._heap) + self._in_blocks

    def add(self, due: int, sequence: int, attempts: int) -> None:
        heappush(self._heap, self._add_member(due, sequence, attempts))
        if len(self._heap) >= _BLOCK:
            self._push_all([])
        if self._former:
            self._drop_some(_DROPPED_WITH_EACH)

    def add_runs(self, at: int, pieces: Iterable[list[tuple[int, int, int]]], sequences: BitMap64) -> None:
        """Add these sequences of batches, given as (start, count, delay in ms). The delays begin at `at`.

        The sequences must never have been here before, nor delivered. Call `unpack` soon. Don't change the batches or
        the bitmap afterwards.
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
        """Make entries for up to `most` messages of the runs. Return how many messages were checked."""
        left, entries = most, list[int]()
        while left > 0 and self._runs:
            at, batches, sequences, place, passed = self._runs.popleft()
            start, count, delay_ms = batches[place]
            stop = min(count, passed + left)
            left -= stop - passed
            first = _entry_base(at, delay_ms)
            for sequence in range(start + passed, start + stop):
                packed = first | sequence << _REST_BITS
                if sequence in sequences and self._is_valid(packed):
                    entries.append(packed)
            if stop < count:
                self._runs.appendleft((at, batches, sequences, place, stop))
            elif place + 1 < len(batches):
                self._runs.appendleft((at, batches, sequences, place + 1, 0))
        self._push_all(entries)
        return most - left

    def fill(self, entries: Iterator[tuple[int, int, int]]) -> None:
        """Add many (due, sequence, attempts) in one call, for recovery."""
        entries = iter(entries)
        while some := [self._add_member(*it) for it in islice(entries, _BLOCK)]:
            self._push_all(some)

    def _push_all(self, entries: list[int]) -> None:
        """Push entries onto the heap, and turn the ones that don't fit into blocks."""
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

    def _add_member(self, due: int, sequence: int, attempts: int) -> int:
        """Add a position to the members, and return its entry."""
        attempts &= _ATTEMPTS_MASK
        generation = self._members.add(sequence, attempts)
        return ((due << _SEQUENCE_BITS | sequence) << _ATTEMPTS_BITS | attempts) << _GENERATION_BITS | generation

    def attempts_of(self, sequence: int) -> int:
        """Return the attempts of this message so far."""
        return self._members.attempts.get(sequence)

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out the wanted sequences that are deferred, before their time, and return them."""
        if here := self._members.take_out(wanted):
            self._drop_some(min(_DROPPED_WITH_EACH * len(here), _DROPPED_AT_ONCE))
        return here

    def _drop_some(self, most: int) -> None:
        """Check about `most` entries, block by block, and drop the stale ones, if there are many."""
        count, entries = self._members.count, self.entries
        if not count:
            self.clear()
            return
        if not self._former:
            if (entries - count) * 2 <= entries + _FEW:
                return
            self._former, self._blocks, self._checks_owed = self._blocks, [], 0
            some, self._heap = self._heap, []
            self._push_valid(some)
        self._checks_owed += most
        while self._checks_owed > 0 and self._former:
            _, place, block = self._former.pop()  # without its last element, a heap is still a heap
            self._checks_owed -= len(block) - place
            self._in_blocks -= len(block) - place
            self._push_valid(block[place:])

    def _push_valid(self, entries: list[int]) -> None:
        """Push the valid ones of these entries onto the heap."""
        if self._members.generations:
            generations = [packed & _GENERATION_MASK for packed in entries]
            sequences = [packed >> _REST_BITS & _SEQUENCE_MASK for packed in entries]
            entries = list(compress(entries, self._members.which_count(sequences, generations)))
        self._push_all(entries)

    def replace_before(self, end: int, positions: Sequence[tuple[int, int, int]]) -> None:
        """Replace all positions before `end` with these (due, sequence, attempts)."""
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
        """Return the time of the earliest entry, without the runs. None if there is no entry.

        The entry may be stale, so the first position may be due later.
        """
        blocks = self._first()
        packed = blocks[0][0] if blocks else self._heap[0] if self._heap else None
        return packed >> (_SEQUENCE_BITS + _REST_BITS) if packed is not None else None

    def _first(self) -> list[_Block]:
        """Return the heap of blocks with the earliest entry. It is empty if `_heap` has it, or if there is no entry."""
        blocks = self._blocks
        if self._former and (not blocks or self._former[0] < blocks[0]):
            blocks = self._former
        return _NO_BLOCKS if blocks and self._heap and self._heap[0] < blocks[0][0] else blocks

    def pop_due(self, until: int, most: int) -> Iterator[tuple[int, int]]:
        """Take out the positions that are due by `until`, and yield their (sequence, attempts), earliest first.

        It checks up to `most` entries, and fewer if it has to shorten very many blocks. Use `next_due` afterwards to
        find out whether there are more.
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
            if not self._is_valid(packed):
                continue
            sequence, attempts = _deferred_sequence(packed), packed >> _GENERATION_BITS & _ATTEMPTS_MASK
            self._members.remove(sequence, sequence + 1, attempts)
            yield sequence, attempts
        if not self._members.count:
            self.clear()

    def _shorten(self, blocks: list[_Block], rest: list[int]) -> int:
        """Replace the first of these blocks with the rest of its entries. Return the cost, in entries."""
        if len(rest) > _SMALL_BLOCK:
            heapreplace(blocks, (rest[0], 0, rest))
            return len(rest) // _COPIED_AS_ONE
        heappop(blocks)
        self._in_blocks -= len(rest)
        self._push_valid(rest)
        return len(rest)

    def clear(self) -> None:
        if self._in_blocks:
            self._reclaimer.add_blocks([block for _, _, block in chain(self._blocks, self._former)])
            self._blocks, self._former, self._in_blocks = [], [], 0
        self._heap.clear()
        self._reclaimer.add_blocks([batches for _, batches, _, _, _ in self._runs or ()])
        self._runs = None
        self._members.clear()


def _dropped_with(changed: int, entries: int) -> int:
    """Return how many entries `replace_before` checks when it changes this many positions."""
    return min(_DROPPED_WITH_EACH * changed, max(_DROPPED_WITH_MANY, entries // _DROPPED_PART))


def _with_attempts(sequences: BitMap64, attempts: AttemptCounts) -> Iterator[tuple[int, int]]:
    for sequence in sequences:
        yield sequence, attempts.get(sequence)


def _retry_sequence(packed: int) -> int:
    """Return the sequence of an entry of a queue."""
    return packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK


def _deferred_sequence(packed: int) -> int:
    """Return the sequence of an entry of a heap."""
    return packed >> _REST_BITS & _SEQUENCE_MASK


def _valid_retries(entries: Iterable[int], members: Members) -> Iterator[tuple[int, int] | None]:
    """Yield the positions of the valid entries, and None after every few thousand stale ones."""
    passed = 0
    for packed in entries:
        sequence = _retry_sequence(packed)
        if members.counts(sequence, packed >> (_SEQUENCE_BITS + _ATTEMPTS_BITS)):
            yield sequence, packed & _ATTEMPTS_MASK
            continue
        passed += 1
        if passed % _PASSED_OVER == 0:
            yield None


def _valid_deferrals(entries: Iterable[int], members: Members) -> Iterator[tuple[int, int, int] | None]:
    """Yield the positions of the valid entries, and None after every few thousand stale ones."""
    passed = 0
    for packed in entries:
        if members.counts(_deferred_sequence(packed), packed & _GENERATION_MASK):
            yield _unpack_deferred(packed)
            continue
        passed += 1
        if passed % _PASSED_OVER == 0:
            yield None


def _next_of(blocks: list[_Block]) -> int:
    """Take the earliest entry out of a heap of blocks."""
    packed, place, block = blocks[0]
    place += 1
    if place < len(block):
        heapreplace(blocks, (block[place], place, block))
    else:
        heappop(blocks)
    return packed


def _entries_of(blocks: list[_Block]) -> Iterator[int]:
    """Yield the entries of these blocks. Drop each one after use, because freeing a million entries at once stalls."""
    while blocks:
        _, place, block = blocks.pop()
        yield from islice(block, place, None)


def _entries_of_runs(runs: Iterable[_Run]) -> Iterator[int]:
    """Yield the entries that `unpack` would make of these runs."""
    for at, batches, sequences, place, passed in runs:
        for start, count, delay_ms in islice(batches, place, None):
            first = _entry_base(at, delay_ms)
            for sequence in range(start + passed, start + count):
                if sequence in sequences:  # otherwise it was cancelled as an early deferral, and has no entry
                    yield first | sequence << _REST_BITS
            passed = 0


def _entry_base(at: int, delay_ms: int) -> int:
    """Return the part that all entries of a batch of a run share: everything but the sequence."""
    return (at + delay_ms * 1000 << _SEQUENCE_BITS) << _REST_BITS


def _unpack_deferred(packed: int) -> tuple[int, int, int]:
    return (
        packed >> (_SEQUENCE_BITS + _REST_BITS),
        _deferred_sequence(packed),
        packed >> _GENERATION_BITS & _ATTEMPTS_MASK,
    )
