"""The deferred messages of a channel: each waits here until it is due, as an entry of a heap of sorted blocks.

queue_members.py explains how entries are packed, and how one is removed from the middle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, compress, islice
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from nsqd.broker.bitmaps import between, in_pieces
from nsqd.broker.queue_members import (
    ATTEMPTS_BITS,
    ATTEMPTS_MASK,
    DROPPED_AT_ONCE,
    DROPPED_WITH_EACH,
    FEW,
    PASSED_OVER,
    SEQUENCE_BITS,
    SEQUENCE_MASK,
    Members,
    changes_of,
    dropped_with,
    noted,
    plain,
)

if TYPE_CHECKING:
    from nsqd.broker.reclaimer import Reclaimer

_GENERATION_BITS: Final = 40  # of a deferral; no sequence is taken out and put back that often
_GENERATION_MASK: Final = (1 << _GENERATION_BITS) - 1
_REST_BITS: Final = ATTEMPTS_BITS + _GENERATION_BITS
_BLOCK: Final = 1_024  # entries; sorting them takes a fraction of a millisecond
_SMALL_BLOCK: Final = 128  # entries; when a block is down to this many, they go back to the heap
_COPIED_AS_ONE: Final = 8  # copying this many entries takes as long as taking one out
_BLOCKS_AT_ONCE: Final = 2_000  # blocks to search for the start of a page between two yields; a millisecond or two
_WALKED_AT_ONCE: Final = 1_000  # entries of a page between two yields; a millisecond
_UNPACKED_AT_ONCE: Final = 5_000  # messages of a run; a few milliseconds

# Batches that were deferred together: when their delays begin, in microseconds; (start, count, delay in ms) of each;
# the sequences that were deferred; and which batch, and which message in it, to put onto the heap next. Channels share
# the batches and the bitmap, so these never change.
_Run = tuple[int, list[tuple[int, int, int]], BitMap64, int, int]

# The next entry, its index, and all entries in ascending order. Iterators share the list, so it never changes.
_Block = tuple[int, int, list[int]]
_NO_BLOCKS: Final[list[_Block]] = []


class DeferredQueue:
    """Deferred messages, the earliest due time first. Times are in microseconds.

    One publish may defer a million messages, and so may a topic that releases its early deferrals. Creating their
    entries takes a second. So they wait as a *run*, and each call of `unpack` creates some thousands of entries.

        run ──► heap of up to 1,023 ──► sorted blocks of 1,024 ──► due
                          ▲                     │
                          └── the last 128 ◄────┘

    A snapshot needs all entries at a point in time, and copying a million takes 9 to 30 ms. So the list of a block
    never changes: the snapshot shares the blocks, and copies only the heap. To take an entry out of a block, we advance
    the index of its next entry. Once half of a block is used up, we replace it with a shorter one to free memory. The
    last 128 entries go back to the heap, because copying many small blocks would be as slow as copying many entries.
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
        """Yield (due, sequence, attempts so far) of each position, in no particular order."""
        entries = chain(self._heap, _entries_of([*self._blocks, *self._former]), _entries_of_runs(self._runs or ()))
        return filter(None, _valid_deferrals(entries, self._members))

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._members.sequences

    def has_any(self, start: int, end: int) -> bool:
        """Return whether any sequence in [start, end) is deferred."""
        here = self._members.sequences
        return start in here or (end - start > 1 and here.range_cardinality(start, end) > 0)

    def among(self, sequences: BitMap64) -> BitMap64:
        """Return the given sequences that are deferred."""
        return self._members.sequences & sequences

    def copy(self) -> Iterator[tuple[int, int, int] | None]:
        """Return an iterator over the positions as of this call.

        It also yields None now and then, so that other work can run even if thousands of entries in a row are stale.
        """
        blocks = [*self._blocks, *self._former]
        entries = chain(self._heap.copy(), _entries_of(blocks), _entries_of_runs(list(self._runs or ())))
        return _valid_deferrals(entries, self._members.copy())

    def sequences(self) -> Iterator[list[int]]:
        """Return the current sequences, in lists of a few thousand."""
        return in_pieces(self._members.sequences)

    def positions_of(self, wanted: BitMap64) -> list[tuple[int, int, int]]:
        """Return (due, sequence, attempts so far) of the wanted sequences that are deferred, in no particular order.

        This goes through all entries, which takes a few milliseconds for a hundred thousand.
        """
        entries = chain(self._heap, _entries_of([*self._blocks, *self._former]), _entries_of_runs(self._runs or ()))
        found = [packed for packed in entries if packed >> _REST_BITS & SEQUENCE_MASK in wanted]
        return list(filter(None, _valid_deferrals(found, self._members)))

    def note_changes(self, *, wanted: bool) -> None:
        """Note from now on which sequences come and go, or stop that."""
        self._members = noted(self._members) if wanted else plain(self._members)

    def changes(self) -> BitMap64:
        """Return the sequences that have come or gone since the last call, but not the ones of `add_runs`."""
        return changes_of(self._members)

    def delivered(self) -> BitMap64:
        """Return the sequences that were delivered before they were deferred."""
        return self._members.attempts.above_zero()

    def lowest(self) -> int | None:
        """Return the lowest sequence, or None if none is deferred."""
        return self._members.sequences.min() if self._members.count else None

    def earliest(self, count: int, after: tuple[int, int] = (-1, -1)) -> Iterator[tuple[int, int, int] | None]:
        """Yield the next `count` positions after a (due, sequence), the earliest due time first.

        It also yields None now and then, so that other work can run. Positions that are added in between may be missing
        here, and positions that are moved may still have their former time.
        """
        bound = (after[0] << SEQUENCE_BITS | after[1] + 1) << _REST_BITS if after[0] >= 0 else 0
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
        """Return False if the entry is stale."""
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
            self._drop_some(DROPPED_WITH_EACH)

    def add_runs(self, at: int, pieces: Iterable[list[tuple[int, int, int]]], sequences: BitMap64) -> None:
        """Add the sequences of batches, given as (start, count, delay in ms). The delays begin at `at`.

        The messages must never have been here or delivered before. Call `unpack` soon. Don't change the batches or
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
        """Create entries for up to `most` messages of the runs. Return how many messages were checked."""
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
        attempts &= ATTEMPTS_MASK
        generation = self._members.add(sequence, attempts)
        return ((due << SEQUENCE_BITS | sequence) << ATTEMPTS_BITS | attempts) << _GENERATION_BITS | generation

    def attempts_of(self, sequence: int) -> int:
        """Return how many attempts this message has had."""
        return self._members.attempts.get(sequence)

    def take_out(self, wanted: BitMap64) -> BitMap64:
        """Take out the wanted sequences that are deferred, before their time, and return them."""
        if here := self._members.take_out(wanted):
            self._drop_some(min(DROPPED_WITH_EACH * len(here), DROPPED_AT_ONCE))
        return here

    def _drop_some(self, most: int) -> None:
        """If many entries are stale, check about `most` entries, block by block, and drop the stale ones."""
        count, entries = self._members.count, self.entries
        if not count:
            self.clear()
            return
        if not self._former:
            if (entries - count) * 2 <= entries + FEW:
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
        """Push these entries onto the heap, without the stale ones."""
        if self._members.generations:
            generations = [packed & _GENERATION_MASK for packed in entries]
            sequences = [packed >> _REST_BITS & SEQUENCE_MASK for packed in entries]
            entries = list(compress(entries, self._members.which_count(sequences, generations)))
        self._push_all(entries)

    def replace_before(self, end: int, positions: Sequence[tuple[int, int, int]]) -> None:
        """Replace all positions before `end` with these (due, sequence, attempts)."""
        members = self._members
        taken = members.take_out(between(members.sequences, 0, end))
        if not members.count:
            self.clear()
        sequences = [sequence for _, sequence, _ in positions]
        attempts = [number & ATTEMPTS_MASK for _, _, number in positions]
        generations = members.add_all(sequences, attempts)
        self._push_all(
            [
                (due << SEQUENCE_BITS | sequence) << _REST_BITS | number << _GENERATION_BITS | generation
                for (due, sequence, _), number, generation in zip(positions, attempts, generations, strict=True)
            ]
        )
        self._drop_some(dropped_with(len(taken) + len(positions), self.entries))

    def next_due(self) -> int | None:
        """Return the due time of the earliest entry, not counting the runs. None if there is no entry.

        The entry may be stale, so the first position may be due later.
        """
        blocks = self._first()
        packed = blocks[0][0] if blocks else self._heap[0] if self._heap else None
        return packed >> (SEQUENCE_BITS + _REST_BITS) if packed is not None else None

    def _first(self) -> list[_Block]:
        """Return the heap of blocks with the earliest entry. It is empty if `_heap` has it, or if there is no entry."""
        blocks = self._blocks
        if self._former and (not blocks or self._former[0] < blocks[0]):
            blocks = self._former
        return _NO_BLOCKS if blocks and self._heap and self._heap[0] < blocks[0][0] else blocks

    def pop_due(self, until: int, most: int) -> Iterator[tuple[int, int]]:
        """Take out the positions that are due by `until`, and yield their (sequence, attempts), earliest first.

        This checks up to `most` entries, or fewer if it has to shorten very many blocks. Use `next_due` afterwards to
        find out whether there are more.
        """
        bound = (until + 1) << (SEQUENCE_BITS + _REST_BITS)
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
            sequence, attempts = _deferred_sequence(packed), packed >> _GENERATION_BITS & ATTEMPTS_MASK
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


def _deferred_sequence(packed: int) -> int:
    """Return the sequence of an entry of a heap."""
    return packed >> _REST_BITS & SEQUENCE_MASK


def _valid_deferrals(entries: Iterable[int], members: Members) -> Iterator[tuple[int, int, int] | None]:
    """Yield the positions of the valid entries, and None after every few thousand stale ones."""
    passed = 0
    for packed in entries:
        if members.counts(_deferred_sequence(packed), packed & _GENERATION_MASK):
            yield _unpack_deferred(packed)
            continue
        passed += 1
        if passed % PASSED_OVER == 0:
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
    """Yield the entries that `unpack` would create from these runs."""
    for at, batches, sequences, place, passed in runs:
        for start, count, delay_ms in islice(batches, place, None):
            first = _entry_base(at, delay_ms)
            for sequence in range(start + passed, start + count):
                if sequence in sequences:  # otherwise it was cancelled as an early deferral, and has no entry
                    yield first | sequence << _REST_BITS
            passed = 0


def _entry_base(at: int, delay_ms: int) -> int:
    """Return the common part of all entries of a batch in a run: everything but the sequence."""
    return (at + delay_ms * 1000 << SEQUENCE_BITS) << _REST_BITS


def _unpack_deferred(packed: int) -> tuple[int, int, int]:
    return (
        packed >> (SEQUENCE_BITS + _REST_BITS),
        _deferred_sequence(packed),
        packed >> _GENERATION_BITS & ATTEMPTS_MASK,
    )
