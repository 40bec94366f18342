"""Tools for bitmaps of sequences: convert and split them, or pass over their ranges with a cursor (`SkipRanges`).

A bitmap costs two bytes per sequence, and much less if the sequences are neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from pyroaring import BitMap64

_PIECE: Final = 4_000  # sequences; copying them takes a fraction of a millisecond


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
    """Return the sequences in [start, end). The bounds may be far from the nearest sequence."""
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
    """The sequences that a cursor passes over."""

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
        """Return the given sequences that no range covers."""
        return sequences - self._covered

    def behind(self, sequence: int) -> BitMap64:
        """Return the covered sequences from `sequence` on."""
        covered = self._covered.copy()
        covered.remove_range(0, sequence)
        return covered

    def add_newest(self, count: int, floor: int, end: int) -> list[tuple[int, int]]:
        """Cover the newest uncovered sequences of [floor, end), up to `count` of them.

        Returns them as ranges, newest first.
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
        """Return the place of a cursor at `sequence` after skipping the range there, if any. Drops earlier ranges."""
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
