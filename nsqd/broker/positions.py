"""Sequences that a channel keeps besides its cursor: gaps, retries and deferrals, as plain integers.

An integer of three packed fields costs 36 bytes, and the garbage collector never looks at it; a tuple of three costs
150. With a million deferred messages, that difference is 114 MB.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from pyroaring import BitMap64

_ATTEMPTS_BITS: Final = 16
_ATTEMPTS_MASK: Final = (1 << _ATTEMPTS_BITS) - 1
_SEQUENCE_BITS: Final = 64
_SEQUENCE_MASK: Final = (1 << _SEQUENCE_BITS) - 1
_PIECE: Final = 4_000  # positions; copying them takes a fraction of a millisecond
_LOOKED_AT: Final = 50_000  # positions, before others have their turn: some milliseconds
_WALKED_PAST: Final = 500  # positions that a walk may leave behind before it begins
_SAMPLED: Final = 1_000  # about so many positions tell which of them belong to a page
_SPARE: Final = 10  # sampled positions beyond the end of a page, so that it is seldom too short
_NO_CEILING: Final = 1 << 200  # higher than any entry of the heap
_LENGTH_BITS: Final = 40
_LENGTH_MASK: Final = (1 << _LENGTH_BITS) - 1


class SkipRanges:
    """Sequences ahead of a cursor that the cursor passes over, as [start, end) in ascending order."""

    __slots__ = ("_ranges", "total")

    def __init__(self) -> None:
        self._ranges: deque[int] = deque()
        self.total = 0  # how many sequences lie in all ranges

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for packed in self._ranges:
            start = packed >> _LENGTH_BITS
            yield start, start + (packed & _LENGTH_MASK)

    def __len__(self) -> int:
        return len(self._ranges)

    def copy(self) -> SkipRanges:
        copied = SkipRanges()
        copied._ranges = self._ranges.copy()
        copied.total = self.total
        return copied

    def add(self, start: int, end: int) -> None:
        """Add a range, which must lie behind all others without overlapping them. Adjacent ranges become one."""
        if start >= end:
            return
        self.total += end - start
        if self._ranges:
            last = self._ranges[-1]
            last_start = last >> _LENGTH_BITS
            if last_start + (last & _LENGTH_MASK) == start:
                self._ranges[-1] = last_start << _LENGTH_BITS | (end - last_start)
                return
        self._ranges.append(start << _LENGTH_BITS | (end - start))

    def insert(self, sequence: int) -> None:
        """Cover one more sequence, which no range covers yet; it may lie anywhere."""
        ranges = self._ranges
        place = bisect_left(ranges, sequence << _LENGTH_BITS)
        start, end = sequence, sequence + 1
        if place < len(ranges) and ranges[place] >> _LENGTH_BITS == end:
            end += ranges[place] & _LENGTH_MASK
            del ranges[place]
        if place and (ranges[place - 1] >> _LENGTH_BITS) + (ranges[place - 1] & _LENGTH_MASK) == start:
            place -= 1
            start = ranges[place] >> _LENGTH_BITS
            del ranges[place]
        ranges.insert(place, start << _LENGTH_BITS | (end - start))
        self.total += 1

    def covers(self, sequence: int) -> bool:
        ranges = self._ranges
        place = bisect_left(ranges, (sequence + 1) << _LENGTH_BITS) - 1
        return place >= 0 and sequence < (ranges[place] >> _LENGTH_BITS) + (ranges[place] & _LENGTH_MASK)

    def add_newest(self, count: int, floor: int, end: int) -> list[tuple[int, int]]:
        """Cover the `count` newest sequences of [floor, end) that no range covers yet; `end` is beyond all ranges.

        Return the sequences as ranges, from the newest to the oldest.
        """
        covered: list[tuple[int, int]] = []
        start, left = end, count
        for packed in reversed(self._ranges):
            low = packed >> _LENGTH_BITS
            high = low + (packed & _LENGTH_MASK)
            if high <= floor or start - high >= left:
                break
            left -= start - high
            if high < start:
                covered.append((high, start))
            start = low
        high, start = start, max(floor, start - left)
        if start < high:
            covered.append((start, high))
        while self._ranges:
            packed = self._ranges[-1]
            low, length = packed >> _LENGTH_BITS, packed & _LENGTH_MASK
            if low + length <= start:
                break
            self._ranges.pop()
            self.total -= length
            start = min(start, low)
        self.add(start, end)
        return covered

    def free_backwards(self, floor: int, end: int) -> Iterator[int]:
        """Yield the sequences of [floor, end) that no range covers, the newest first; `end` is beyond all ranges."""
        for packed in reversed(self._ranges):
            start = packed >> _LENGTH_BITS
            yield from range(end - 1, max(floor, start + (packed & _LENGTH_MASK)) - 1, -1)
            end = start
        yield from range(end - 1, floor - 1, -1)

    def pass_over(self, sequence: int) -> int:
        """Return where a cursor at `sequence` stands after the ranges there. Ranges before that place are dropped."""
        while self._ranges:
            packed = self._ranges[0]
            start, length = packed >> _LENGTH_BITS, packed & _LENGTH_MASK
            if start > sequence:
                break
            sequence = max(sequence, start + length)
            self._ranges.popleft()
            self.total -= length
        return sequence

    def next_start(self) -> int | None:
        return self._ranges[0] >> _LENGTH_BITS if self._ranges else None

    def clear(self) -> None:
        self._ranges.clear()
        self.total = 0


class Pins:
    """How many positions lie in each block of 65,536 sequences: enough to tell which segments are needed."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: Counter[int] = Counter()

    def add(self, sequence: int) -> None:
        self._blocks[sequence >> 16] += 1

    def remove(self, sequence: int) -> None:
        block = sequence >> 16
        left = self._blocks[block] - 1
        if left:
            self._blocks[block] = left
        else:
            del self._blocks[block]

    def lowest(self) -> int | None:
        """Return a sequence that no position is below; the lowest may be a little higher. None: there are none."""
        return min(self._blocks) << 16 if self._blocks else None

    def refill(self, sequences: Iterable[int]) -> None:
        """Replace all positions."""
        self._blocks = Counter([sequence >> 16 for sequence in sequences])

    def clear(self) -> None:
        self._blocks.clear()


class Retries:
    """Positions that wait for their next delivery, first come first served."""

    __slots__ = ("_queue", "pins")

    def __init__(self) -> None:
        self._queue: deque[int] = deque()
        self.pins = Pins()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (sequence, attempts so far) of each position."""
        return map(_unpack_retry, self._queue)

    def copy(self) -> Iterator[tuple[int, int]]:
        """Return an iterator over a copy of the present positions."""
        return map(_unpack_retry, self._queue.copy())

    def sequences(self) -> Iterator[list[int]]:
        """Return the sequences of all present positions, in pieces."""
        queue = iter(self._queue.copy())
        return iter(lambda: [packed >> _ATTEMPTS_BITS for packed in islice(queue, _PIECE)], [])

    def add(self, sequence: int, attempts: int) -> None:
        self._queue.append(sequence << _ATTEMPTS_BITS | attempts & _ATTEMPTS_MASK)
        self.pins.add(sequence)

    def turn(self, count: int, wanted: Container[int]) -> list[int]:
        """Move the first `count` positions to the end, but take out those that are wanted and were never delivered.

        Whoever turns as many as there were at first, in several calls, has seen all of them, whatever comes and goes
        meanwhile.
        """
        queue = self._queue
        taken: list[int] = []
        for _ in range(min(count, len(queue))):
            packed = queue.popleft()
            sequence = packed >> _ATTEMPTS_BITS
            if packed & _ATTEMPTS_MASK or sequence not in wanted:
                queue.append(packed)
            else:
                taken.append(sequence)
                self.pins.remove(sequence)
        return taken

    def take(self, wanted: Container[int]) -> dict[int, int]:
        """Take out the wanted positions that wait here. Return their attempts. This looks at all positions."""
        taken = dict([_unpack_retry(packed) for packed in self._queue if packed >> _ATTEMPTS_BITS in wanted])
        if taken:
            self._queue = deque([packed for packed in self._queue if packed >> _ATTEMPTS_BITS not in taken])
            for sequence in taken:
                self.pins.remove(sequence)
        return taken

    def replace_before(self, end: int, positions: Iterable[tuple[int, int]]) -> None:
        """Replace all positions before `end` by these (sequence, attempts), which come first."""
        queue = [sequence << _ATTEMPTS_BITS | attempts & _ATTEMPTS_MASK for sequence, attempts in positions]
        queue += [packed for packed in self._queue if packed >> _ATTEMPTS_BITS >= end]
        self._queue = deque(queue)
        self.pins.refill([packed >> _ATTEMPTS_BITS for packed in queue])

    def peek(self) -> tuple[int, int]:
        packed = self._queue[0]
        return packed >> _ATTEMPTS_BITS, packed & _ATTEMPTS_MASK

    def pop_run(self, limit: int, end: int) -> tuple[int, int, int]:
        """Take out up to `limit` neighbours below `end` with equal attempts. Return (first, end, attempts)."""
        queue = self._queue
        packed = queue.popleft()
        first, attempts = packed >> _ATTEMPTS_BITS, packed & _ATTEMPTS_MASK
        self.pins.remove(first)
        stop = min(first + limit, end)
        sequence = first + 1
        step = 1 << _ATTEMPTS_BITS
        while sequence < stop and queue and queue[0] == packed + step:
            packed = queue.popleft()
            self.pins.remove(sequence)
            sequence += 1
        return first, sequence, attempts

    def clear(self) -> None:
        self._queue.clear()
        self.pins.clear()


class Deferred:
    """Positions that become deliverable at a time, the earliest first. Times are in microseconds.

    What is taken out before its time stays in the heap until it is met there: looking for it among a million would take
    longer than anybody may wait. So the heap tells when, and the set of sequences tells what.
    """

    __slots__ = ("_gone", "_heap", "_sequences")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._sequences = BitMap64()
        self._gone: set[int] = set()  # sequences that are in the heap, but were taken out

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (due, sequence, attempts so far) of each position, in no order."""
        return map(_unpack_deferred, self._packed())

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sequences

    def has_any(self, start: int, end: int) -> bool:
        """Return whether one of the sequences [start, end) is among them."""
        return start in self._sequences or (end - start > 1 and self._sequences.range_cardinality(start, end) > 0)

    def copy(self) -> Iterator[tuple[int, int, int]]:
        """Return an iterator over a copy of the present positions."""
        return map(_unpack_deferred, self._packed().copy())

    def sequences(self) -> Iterator[list[int]]:
        """Return the sequences of all present positions, in pieces."""
        heap = iter(self._packed().copy())
        return iter(
            lambda: [packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK for packed in islice(heap, _PIECE)],
            [],
        )

    def lowest(self) -> int | None:
        """Return the lowest sequence; None: there is none."""
        return self._sequences.min() if self._sequences else None

    def earliest(self, count: int, after: tuple[int, int] = (-1, -1)) -> Iterator[tuple[int, int, int] | None]:
        """Yield the first positions behind a (due, sequence), in the order in which they become due.

        Yield None now and then, so that others can have their turn: far behind the first position, all are looked at.
        """
        bound = (after[0] << _SEQUENCE_BITS | after[1] + 1) << _ATTEMPTS_BITS if after[0] >= 0 else 0
        found = self._walk(count, bound)
        if found is None:
            heap = self._heap.copy()
            ceiling = _ceiling(heap, count, bound)
            while True:
                found = []
                for start in range(0, len(heap), _LOOKED_AT):
                    piece = heap[start : start + _LOOKED_AT]
                    found += [packed for packed in piece if bound <= packed <= ceiling and self._is_here(packed)]
                    yield None
                if len(found) >= count or ceiling == _NO_CEILING:
                    break
                ceiling = _NO_CEILING  # it was too low: of what lies below it, much was taken out
            found.sort()
        for packed in found[:count]:
            yield _unpack_deferred(packed)

    def _walk(self, count: int, bound: int) -> list[int] | None:
        """Return up to `count` positions from `bound` on in order; None: too many lie before it to walk past them.

        The next of a heap is always among the children of those before it, so the others need not be looked at.
        """
        heap = self._heap
        places = [(heap[0], 0)] if heap else []
        found: list[int] = []
        left = count + _WALKED_PAST
        while places and len(found) < count:
            packed, place = heappop(places)
            if packed >= bound and self._is_here(packed):
                found.append(packed)
            elif left <= 0:
                return None
            left -= 1
            for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heappush(places, (heap[child], child))
        return found

    def _is_here(self, packed: int) -> bool:
        """Return whether an entry of the heap still counts: it was not taken out."""
        return packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK in self._sequences

    def add(self, due: int, sequence: int, attempts: int) -> None:
        if sequence in self._gone:
            self._packed()
        heappush(self._heap, (due << _SEQUENCE_BITS | sequence) << _ATTEMPTS_BITS | attempts & _ATTEMPTS_MASK)
        self._sequences.add(sequence)

    def fill(self, entries: Iterator[tuple[int, int, int]]) -> None:
        """Add many (due, sequence, attempts) at once, as recovery has them."""
        heap = self._packed()
        for due, sequence, attempts in entries:
            heap.append((due << _SEQUENCE_BITS | sequence) << _ATTEMPTS_BITS | attempts & _ATTEMPTS_MASK)
            self._sequences.add(sequence)
        heapify(heap)

    def take_out(self, sequence: int) -> bool:
        """Take out one position before its time. Return whether it was there."""
        if sequence not in self._sequences:
            return False
        self._sequences.remove(sequence)
        self._gone.add(sequence)
        if len(self._gone) > len(self._heap) // 2:
            self._packed()
        return True

    def take(self, wanted: Iterable[int]) -> dict[int, int]:
        """Take out the wanted positions that are here. Return their attempts. This looks at all positions."""
        here = {sequence for sequence in wanted if sequence in self._sequences}
        if not here:
            return {}
        packed = [it for it in self._packed() if it >> _ATTEMPTS_BITS & _SEQUENCE_MASK in here]
        for sequence in here:
            self.take_out(sequence)
        return {it >> _ATTEMPTS_BITS & _SEQUENCE_MASK: it & _ATTEMPTS_MASK for it in packed}

    def replace_before(self, end: int, positions: Iterable[tuple[int, int, int]]) -> None:
        """Replace all positions before `end` by these (due, sequence, attempts)."""
        self._heap = [packed for packed in self._packed() if packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK >= end]
        self._sequences = BitMap64([packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK for packed in self._heap])
        self.fill(iter(positions))

    def next_due(self) -> int | None:
        """Return when to look next: when the first position is due, or one was that has been taken out."""
        return self._heap[0] >> (_SEQUENCE_BITS + _ATTEMPTS_BITS) if self._heap else None

    def pop_due(self, until: int) -> Iterator[tuple[int, int]]:
        """Take out everything due at `until` or before, and yield its (sequence, attempts), the earliest first."""
        bound = (until + 1) << (_SEQUENCE_BITS + _ATTEMPTS_BITS)
        heap, gone = self._heap, self._gone
        while heap and heap[0] < bound:
            packed = heappop(heap)
            sequence = packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK
            if sequence in gone:
                gone.remove(sequence)
                continue
            self._sequences.discard(sequence)
            yield sequence, packed & _ATTEMPTS_MASK

    def clear(self) -> None:
        self._heap.clear()
        self._sequences.clear()
        self._gone.clear()

    def _packed(self) -> list[int]:
        """Return the heap, without what was taken out."""
        if self._gone:
            gone = self._gone
            self._heap = [it for it in self._heap if it >> _ATTEMPTS_BITS & _SEQUENCE_MASK not in gone]
            heapify(self._heap)
            self._gone = set()
        return self._heap


def _unpack_retry(packed: int) -> tuple[int, int]:
    return packed >> _ATTEMPTS_BITS, packed & _ATTEMPTS_MASK


def _unpack_deferred(packed: int) -> tuple[int, int, int]:
    return (
        packed >> (_SEQUENCE_BITS + _ATTEMPTS_BITS),
        packed >> _ATTEMPTS_BITS & _SEQUENCE_MASK,
        packed & _ATTEMPTS_MASK,
    )


def _ceiling(heap: list[int], count: int, bound: int) -> int:
    """Return an entry up to which most probably more than `count` lie from `bound` on, by a sample of the heap.

    Return `_NO_CEILING` near the end, where the sample has too few.
    """
    step = len(heap) // _SAMPLED + 1
    sample = sorted([packed for packed in heap[::step] if packed >= bound])
    place = count // step + _SPARE
    return sample[place] if place < len(sample) else _NO_CEILING
