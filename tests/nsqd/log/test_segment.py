from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqd.broker.batch import Batch
from nsqd.log.record import encode
from nsqd.log.segment import Hole, ReadAt, SegmentIndex, SegmentWalk, base_of_name, segment_name
from tests.nsqd.log.batches import batch_runs, make_batch


def record_of(batch: Batch) -> bytes:
    return b"".join(encode(batch))


def reader_of(data: bytes) -> ReadAt:
    return lambda offset, size: data[offset : offset + size]


def walk_over(data: bytes, *, sequence: int = 0, verify: bool = True, next_base: int | None = None) -> SegmentWalk:
    walk = SegmentWalk(reader_of(data), offset=0, sequence=sequence, end=len(data), verify=verify, next_base=next_base)
    walk.run()
    return walk


FIVE = [record_of(make_batch(2 * n, [b"message", bytes(n)])) for n in range(5)]


@pytest.mark.parametrize("base", [0, 7, 10**19])
def test_name_tells_the_base(base: int) -> None:
    assert base_of_name(segment_name(base)) == base


@pytest.mark.parametrize("name", ["log.json", "1.log", f"{7:020}.index", f"{7:020}.log.torn.5", "x" * 20 + ".log"])
def test_other_names_are_no_segments(name: str) -> None:
    assert base_of_name(name) is None


@given(batch_runs())
def test_sound_segment_is_walked_to_its_end(run: list[Batch]) -> None:
    data = b"".join(map(record_of, run))
    walk = walk_over(data)
    assert (walk.offset, walk.sequence, walk.holes) == (len(data), run[-1].end_sequence, [])


@given(batch_runs(), st.data())
def test_damage_before_a_sound_record_is_a_hole(run: list[Batch], data: st.DataObject) -> None:
    records = [record_of(batch) for batch in [*run, make_batch(run[-1].end_sequence, [b"sound"])]]
    number = data.draw(st.integers(0, len(run) - 1))
    start = sum(map(len, records[:number]))
    damaged = bytearray(b"".join(records))
    place = data.draw(st.integers(start, start + len(records[number]) - 1))
    damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    walk = walk_over(bytes(damaged))
    bad = run[number]
    assert walk.holes == [Hole(bad.base_sequence, bad.end_sequence, start, start + len(records[number]))]
    assert (walk.offset, walk.sequence) == (len(damaged), run[-1].end_sequence + 1)


@pytest.mark.parametrize("garbage", [b"\0" * 500, b"\xf1NS\x01" * 50, FIVE[4][:-1], FIVE[4][:30]])
def test_garbage_at_the_end_is_a_torn_tail(garbage: bytes) -> None:
    sound = b"".join(FIVE[:4])
    walk = walk_over(sound + garbage)
    assert (walk.offset, walk.sequence, walk.holes) == (len(sound), 8, [])


def test_garbage_at_the_end_of_a_sealed_segment_is_a_hole() -> None:
    sound = b"".join(FIVE[:4])
    walk = walk_over(sound + b"garbage", next_base=10)
    assert walk.holes == [Hole(8, 10, len(sound), len(sound) + 7)]


def test_missing_end_of_a_sealed_segment_is_a_hole_without_bytes() -> None:
    sound = b"".join(FIVE[:4])
    assert walk_over(sound, next_base=10).holes == [Hole(8, 10, len(sound), len(sound))]


def test_record_missing_in_the_middle_is_a_hole_without_bytes() -> None:
    walk = walk_over(FIVE[0] + FIVE[2])
    assert walk.holes == [Hole(2, 4, len(FIVE[0]), len(FIVE[0]))]
    assert walk.sequence == 6


def test_two_damaged_records_in_a_row_are_one_hole() -> None:
    data = bytearray(b"".join(FIVE))
    data[len(FIVE[0]) + 60] ^= 1
    data[len(FIVE[0] + FIVE[1]) + 60] ^= 1
    assert [(hole.first, hole.end) for hole in walk_over(bytes(data)).holes] == [(2, 6)]


def test_record_within_a_damaged_message_is_passed_over() -> None:
    later = record_of(make_batch(3, [b"smuggled"]))
    outer = bytearray(record_of(make_batch(1, [later, b"x"])))
    outer[-1] ^= 1
    data = record_of(make_batch(0, [b"a"])) + bytes(outer) + record_of(make_batch(3, [b"real"]))
    walk = walk_over(data)
    assert [(hole.first, hole.end, hole.end_offset) for hole in walk.holes] == [(1, 3, 61 + len(outer))]


def test_record_larger_than_a_block_is_walked_over() -> None:
    large = record_of(make_batch(2, [bytes(3 << 20)]))
    data = FIVE[0] + large + record_of(make_batch(3, [b"after"]))
    assert walk_over(data).sequence == 4


def test_large_record_after_damage_is_found_across_block_borders() -> None:
    large = record_of(make_batch(2, [bytes(3 << 20)]))
    data = bytes((1 << 20) - 30) + large
    assert [(hole.first, hole.end) for hole in walk_over(data).holes] == [(0, 2)]


def test_file_shorter_than_was_said_ends_where_it_ends() -> None:
    data = b"".join(FIVE)
    walk = SegmentWalk(reader_of(data), offset=0, sequence=0, end=len(data) + 100, verify=True)
    walk.run()
    assert walk.offset == len(data)


def test_without_verifying_only_headers_are_looked_at() -> None:
    data = bytearray(b"".join(FIVE))
    data[60] ^= 1
    assert walk_over(bytes(data), verify=False).holes == []


def index_of(*entries: tuple[int, int]) -> SegmentIndex:
    index = SegmentIndex()
    for entry in entries:
        index.add(*entry)
    return index


def test_index_gives_the_last_entry_at_or_before_a_sequence() -> None:
    index = index_of((10, 100), (20, 200))
    assert [index.locate(sequence) for sequence in (9, 10, 19, 20, 99)] == [
        None,
        (10, 100),
        (10, 100),
        (20, 200),
        (20, 200),
    ]


def test_index_comes_back_from_its_file() -> None:
    written = index_of((10, 100), (20, 200)).encode_unsaved()
    index = SegmentIndex.decode(written + b"torn", base=0, end_offset=1000)
    assert (list(index.sequences), list(index.offsets), index.saved) == ([10, 20], [100, 200], 2)


@pytest.mark.parametrize("bad", [(10, 300), (30, 100), (0, 0), (30, 1000)])
def test_index_entries_that_make_no_sense_end_it(bad: tuple[int, int]) -> None:
    written = index_of((10, 100), (20, 200), bad, (40, 400)).encode_unsaved()
    assert len(SegmentIndex.decode(written, base=0, end_offset=1000)) == 2


def test_index_is_cut_with_its_segment() -> None:
    index = index_of((10, 100), (20, 200), (30, 300))
    index.saved = 3
    index.cut(200)
    assert (len(index), index.saved) == (1, 1)
