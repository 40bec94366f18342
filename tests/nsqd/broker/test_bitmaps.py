"""Bitmaps and skip ranges, compared with plain sets and lists."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.bitmaps import SkipRanges, between, bitmap_of_ranges, number_of_ranges, ranges_in


def skip_ranges(*ranges: tuple[int, int]) -> SkipRanges:
    skips = SkipRanges()
    for start, end in ranges:
        skips.add(start, end)
    return skips


def covered(skips: SkipRanges) -> set[int]:
    return {sequence for start, end in skips for sequence in range(start, end)}


def test_neighbouring_ranges_become_one() -> None:
    skips = skip_ranges((3, 5), (5, 7), (9, 10))
    assert (list(skips), skips.total) == ([(3, 7), (9, 10)], 5)


def test_empty_range_is_none() -> None:
    assert list(skip_ranges((5, 5))) == []


def test_cursor_passes_over_what_it_meets_and_forgets_what_it_leaves() -> None:
    skips = skip_ranges((3, 5), (7, 8))
    assert skips.pass_over(2) == 2
    assert skips.pass_over(3) == 5
    assert (skips.next_start(), skips.total) == (7, 1)
    assert skips.pass_over(100) == 100
    assert (skips.next_start(), skips.total) == (None, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=8), st.integers(0, 45), st.integers(0, 60))
def test_newest_uncovered_sequences_are_covered(gaps: list[tuple[int, int]], floor: int, count: int) -> None:
    skips, end = SkipRanges(), 0
    for gap, length in gaps:
        skips.add(end + gap, end + gap + length)
        end += gap + length
    end = max(end, floor) + 3
    free = [s for s in range(floor, end) if s not in covered(skips)]
    before = covered(skips)
    assert [s for start, stop in skips.free_ranges(floor, end) for s in range(start, stop)] == free
    ranges = skips.add_newest(count, floor, end)
    assert [s for start, stop in ranges[::-1] for s in range(start, stop)] == (free[-count:] if count else [])
    assert all(start < stop for start, stop in ranges)
    assert covered(skips) == before | set(free[-count:] if count else [])
    assert skips.total == len(covered(skips))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=6), st.sets(st.integers(0, 40)))
def test_single_sequences_are_covered_anywhere(gaps: list[tuple[int, int]], singles: set[int]) -> None:
    skips, end = SkipRanges(), 0
    for gap, length in gaps:
        skips.add(end + gap, end + gap + length)
        end += gap + length
    expected = covered(skips)
    for sequence in sorted(singles, key=lambda it: it % 7):
        assert skips.covers(sequence) == (sequence in expected)
        if sequence not in expected:
            skips.add(sequence, sequence + 1)
            expected.add(sequence)
        assert (covered(skips), skips.total) == (expected, len(expected))
        assert list(skips) == sorted(skips)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=9), st.integers(0, 50), st.integers(0, 50))
def test_bitmaps_are_ranges(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    sequences = {it for first, count in ranges for it in range(first, first + count)}
    bitmap = bitmap_of_ranges((first, first + count) for first, count in ranges)
    found = list(ranges_in(bitmap))
    assert sequences == {it for first, stop in found for it in range(first, stop)}
    assert all(stop < first for (_, stop), (first, _) in pairwise(found))
    assert number_of_ranges(bitmap) == len(found)
    assert set(between(bitmap, start, end)) == {it for it in sequences if start <= it < end}
