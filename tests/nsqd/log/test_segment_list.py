"""A log's segments: which one holds a sequence, where each ends, and which may go."""

from __future__ import annotations

from pathlib import Path

from nsqd.log.retention import Retention
from nsqd.log.segment import Segment
from nsqd.log.segment_list import SegmentList


def segments(*bases: int, tail: int = 100) -> SegmentList:
    return SegmentList([Segment(Path(f"{base}.log"), base, 10) for base in bases], tail)


def bases(found: list[Segment]) -> list[int]:
    return [segment.base for segment in found]


def test_a_sealed_segment_ends_where_the_next_begins_and_the_active_one_at_the_tail() -> None:
    it = segments(5, 20)
    assert [it.end_of(segment) for segment in it] == [20, 100]


def test_first_follows_what_is_added_and_taken() -> None:
    it = segments(tail=0)
    assert (it.first, it.active) == (0, None)
    it.add(Segment(Path("7.log"), 7, 0))
    assert it.first == 7
    it.add(Segment(Path("9.log"), 9, 0))
    assert bases(it.take_before(9)) == [7]
    assert it.first == 9


def test_the_active_segment_is_never_taken() -> None:
    it = segments(0, 10)
    assert bases(it.take_before(1000)) == [0]
    assert it.take_before(1000) == []
    assert it.active is not None


def test_without_retention_everything_sealed_is_unwanted() -> None:
    assert segments(0, 10, 20).unwanted_before(Retention(), 0, keyed_since=0) == 20


def test_retention_by_bytes_keeps_what_has_little_behind_it() -> None:
    assert segments(0, 10, 20).unwanted_before(Retention(bytes=15), 0, keyed_since=0) == 10


def test_a_segment_with_young_keys_is_kept_and_so_are_those_behind_it() -> None:
    it = segments(0, 10, 20)
    it.holding(10).keyed = 50
    assert it.unwanted_before(Retention(), 0, keyed_since=49) == 10
    assert it.unwanted_before(Retention(), 0, keyed_since=50) == 20


def test_old_segments_end_where_the_first_young_or_unknown_one_begins() -> None:
    it = segments(5, 10, 20, 30)
    for base, newest in ((5, 100), (10, 200), (20, 150)):
        it.holding(base).newest = newest
    assert it.older_than(100) == 5
    assert it.older_than(101) == 10
    assert it.older_than(201) == 30  # the active one is never passed whole
    it.holding(5).newest = 0
    assert it.older_than(201) == 5
