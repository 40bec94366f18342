"""Records of a log become Arrow columns, whatever their sizes and wherever the range begins and ends."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcommon.wire.history import StoredBatch
from nsqcommon.wire.log_record import message_offsets
from pyspark_nsq.lanes import Lane
from pyspark_nsq.source.rows import ALL_COLUMNS, COLUMNS, MOST_ROWS, RowBuilder, find_offsets
from tests.support.examples import examples

LANE = Lane("node", "orders", "log")
SCHEMA = pa.schema(list(COLUMNS.items()))
_size = Struct(">I").pack


def stored(bodies: list[bytes], *, base: int, first: int = 0, end: int | None = None, time: int = 5_000) -> StoredBatch:
    payload = b"".join(_size(len(body)) + body for body in bodies)
    offsets = message_offsets(payload, len(bodies))
    assert offsets is not None
    until = base + (len(bodies) if end is None else end)
    return StoredBatch(base + first, until, base, 1000 + base, time, 0, payload, offsets)


@given(st.lists(st.tuples(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.data()), min_size=1, max_size=5))
def test_rows_are_the_messages(drawn: list[tuple[list[bytes], st.DataObject]]) -> None:
    builder, expected, base = RowBuilder(LANE, SCHEMA), [], 7
    for place, (bodies, data) in enumerate(drawn):
        first = data.draw(st.integers(0, len(bodies) - 1)) if place == 0 else 0
        end = data.draw(st.integers(first + 1, len(bodies))) if place == len(drawn) - 1 else len(bodies)
        batch = stored(bodies, base=base, first=first, end=end, time=place * 1_000_000)
        builder.add(batch)
        expected += [
            {"topic": "orders", "node": "node", "sequence": number, "id": f"{message_id:016x}", "body": body}
            for number, message_id, body in batch.messages()
        ]
        base += len(bodies)
    rows = builder.take()
    rows.validate(full=True)
    assert rows.drop_columns(["timestamp"]).to_pylist() == expected
    assert builder.rows == 0


_sizes = st.sampled_from([0, 1, 2, 3, 4, 60, 254, 255, 256, 257, 511, 512, 65_535, 65_536, 70_000])


@given(
    st.lists(st.tuples(_sizes, st.sampled_from([b"x", b"\0", b"\0\0\x01", b"\0\0\0\x02ab"])), min_size=32, max_size=60)
)
@settings(max_examples=examples(60), deadline=None)
def test_offsets_are_found_as_by_a_walk(drawn: list[tuple[int, bytes]]) -> None:
    bodies = [(fill * size)[:size] for size, fill in drawn]
    payload = b"".join(_size(len(body)) + body for body in bodies)
    for count in (len(bodies), len(bodies) - 1, len(bodies) + 1):
        for given_ in (payload, payload[:-1], payload + b"\0"):
            found, expected = find_offsets(given_, count), message_offsets(given_, count)
            assert (found is None) == (expected is None)
            assert found is None or expected is None or list(found) == list(expected)


def test_offsets_of_texts_are_found_without_a_walk() -> None:
    bodies = [b"t" * (1 + number * 7 % 600) for number in range(400)]
    payload = b"".join(_size(len(body)) + body for body in bodies)
    found = find_offsets(payload, len(bodies))
    assert isinstance(found, np.ndarray)
    assert list(found) == message_offsets(payload, len(bodies))


def test_bodies_of_different_sizes_behind_those_of_equal_ones() -> None:
    builder, expected, base = RowBuilder(LANE, SCHEMA), [], 0
    for sizes in (range(1, 80), [5] * 40, range(1, 3), range(300, 340)):
        bodies = [b"t" * size for size in sizes]
        made = stored(bodies, base=base)
        offsets = find_offsets(made.payload, len(bodies))
        assert offsets is not None
        builder.add(replace(made, offsets=offsets))
        expected += bodies
        base += len(bodies)
    assert builder.take()["body"].to_pylist() == expected


def test_times_are_microseconds_in_utc() -> None:
    builder = RowBuilder(LANE, SCHEMA)
    builder.add(stored([b"a", b"b"], base=0, time=1_700_000_000_123_456_789))
    assert builder.take()["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_456] * 2


@pytest.mark.parametrize("columns", [["body"], ["sequence"], ["timestamp", "id"], ["gap", "body", "topic"]])
def test_only_the_columns_that_are_asked_for_are_built(columns: list[str]) -> None:
    builder = RowBuilder(LANE, pa.schema([(name, ALL_COLUMNS[name]) for name in columns]))
    builder.add(stored([b"x" * 20, b"", b"yy"], base=3))
    rows = builder.take()
    assert (rows.schema.names, rows.num_rows) == (columns, 3)
    rows.validate(full=True)


def test_a_gap_is_a_row_without_a_body() -> None:
    builder = RowBuilder(LANE, pa.schema(list(ALL_COLUMNS.items())))
    (row,) = builder.gap(5, 9, "damaged").to_pylist()
    assert (row["sequence"], row["gap"], row["body"], row["id"]) == (5, {"end": 9, "reason": "damaged"}, None, None)


def test_a_builder_is_full_when_spark_should_have_the_rows() -> None:
    builder = RowBuilder(LANE, SCHEMA)
    builder.add(stored([b"x"] * MOST_ROWS, base=0))
    assert builder.is_full
    builder.take()
    assert not builder.is_full


@pytest.mark.parametrize("size", [0, 1, 200])
def test_long_batches_of_equal_sizes_and_high_ids(size: int) -> None:
    bodies = [bytes([number % 256]) * size for number in range(300)]
    first = stored(bodies, base=0)
    top = StoredBatch(300, 600, 300, (1 << 64) - 300, 0, 0, first.payload, first.offsets)
    builder = RowBuilder(LANE, SCHEMA)
    builder.add(first)
    builder.add(top)
    rows = builder.take()
    rows.validate(full=True)
    assert rows["body"].to_pylist() == bodies * 2
    assert rows["id"].to_pylist()[300:] == [f"{number:016x}" for number in range((1 << 64) - 300, 1 << 64)]
    assert rows["sequence"].to_pylist() == list(range(600))


def test_batches_of_equal_sizes_go_on_where_the_last_one_ended_or_not() -> None:
    builder, expected, base = RowBuilder(LANE, SCHEMA), [], 0
    ids = 0
    for size, count, first in ((3, 100, 40), (3, 100, 0), (5, 100, 0), (3, 1, 0), (3, 100, 0), (3, 100, 0)):
        made = stored([b"%0*d" % (size, number) for number in range(count)], base=base, first=first)
        ids += 1 if size == 5 else 0  # another topic's messages came in between
        batch = StoredBatch(made.first, made.end, base, base + ids, 0, 0, made.payload, made.offsets)
        builder.add(batch)
        expected += [(number, f"{message_id:016x}", body) for number, message_id, body in batch.messages()]
        base += count
    rows = builder.take()
    rows.validate(full=True)
    assert list(zip(*(rows[name].to_pylist() for name in ("sequence", "id", "body")), strict=True)) == expected
