"""Rows become bodies of /mpub: whole, in order, within the limits, and checked before anything is sent."""

from __future__ import annotations

from struct import Struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.extensions import is_valid_key
from pyspark_nsq.errors import BadOption, NsqError
from pyspark_nsq.sink.packing import Limits, Part, check_columns, key_of, parts

_size = Struct(">I").pack
ROOMY = Limits(1000, 1 << 20, 1 << 20)


def rows(bodies: list[bytes | None], **columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary()), **columns})


def unpacked(part: Part) -> list[bytes]:
    body, found = memoryview(part.body), []
    assert int.from_bytes(body[:4], "big") == part.count
    position = 4
    while position < len(body):
        size = int.from_bytes(body[position : position + 4], "big")
        found.append(bytes(body[position + 4 : position + 4 + size]))
        position += 4 + size
    assert len(found) == part.count
    return found


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 200))
def test_bodies_come_through_in_parts_that_fit(bodies: list[bytes], most_messages: int, most_bytes: int) -> None:
    made = list(parts(rows(list(bodies)), topic="t", limits=Limits(most_messages, most_bytes, 1 << 20)))
    assert [body for part in made for body in unpacked(part)] == bodies
    for part in made:
        assert part.count <= most_messages
        assert part.count == 1 or len(part.body) <= most_bytes


def test_a_slice_of_a_batch_is_only_the_slice() -> None:
    (part,) = parts(rows([b"a", b"bb", b"ccc", b"d"]).slice(1, 2), topic="t", limits=ROOMY)
    assert unpacked(part) == [b"bb", b"ccc"]


def test_each_topic_and_delay_has_its_own_parts_in_the_order_of_its_rows() -> None:
    given = rows([b"1", b"2", b"3", b"4", b"5"], topic=["a", "b", "a", "b", "a"], defer_ms=[0, 5, 0, None, 7])
    made = [(part.topic, part.defer_ms, unpacked(part)) for part in parts(given, topic="", limits=ROOMY)]
    assert made == [("a", 0, [b"1", b"3"]), ("a", 7, [b"5"]), ("b", 5, [b"2"]), ("b", 0, [b"4"])]


def test_the_option_counts_more_than_the_column() -> None:
    (part,) = parts(rows([b"1", b"2"], topic=["a", "b"]), topic="t", limits=ROOMY)
    assert (part.topic, part.count) == ("t", 2)


def test_strings_are_published_as_utf_8() -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["ä"]})
    (part,) = parts(batch, topic="t", limits=ROOMY)
    assert unpacked(part) == ["ä".encode()]


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (rows([b"x", None]), "no body"),
        (rows([b"x", b""]), "empty body"),
        (rows([b"x", b"y" * 11]), "a body of 11 bytes, and nsqd takes 10"),
        (rows([b"x"], topic=[None]), "no topic"),
        (rows([b"x"], topic=["a"], defer_ms=[-1]), "negative defer_ms"),
        (rows([b"x"], topic=["no such name"]), "'no such name' is not a valid name of a topic"),
    ],
)
def test_what_nsq_would_refuse_is_refused_before_anything_is_sent(batch: pa.RecordBatch, says: str) -> None:
    made = parts(batch, topic="" if "topic" in batch.schema.names else "t", limits=Limits(1, 100, 10))
    with pytest.raises(NsqError, match=says):
        next(made)


@pytest.mark.parametrize(
    ("columns", "topic", "says"),
    [
        ({"value": pa.binary()}, "t", "no column body"),
        ({"body": pa.int64()}, "t", "column body has to be binary or string, not int64"),
        ({"body": pa.binary()}, "", "no column topic, and there is no option topic"),
        ({"body": pa.binary(), "topic": pa.int64()}, "", "column topic has to be string"),
        ({"body": pa.binary(), "defer_ms": pa.string()}, "t", "column defer_ms has to be an integer"),
    ],
)
def test_columns_are_checked_first(columns: dict[str, pa.DataType], topic: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        check_columns(pa.schema(list(columns.items())), topic=topic)


def test_with_keys_each_row_is_a_request_with_its_own_key() -> None:
    given = rows([b"1", b"2", b"3"], topic=["a", "b", "a"], key=["one", None, "three"])
    made = list(parts(given, topic="", limits=ROOMY, has_keys=True))
    assert [(part.topic, part.key, unpacked(part)) for part in made] == [
        ("a", "one", [b"1"]),
        ("a", "three", [b"3"]),
        ("b", "", [b"2"]),
    ]


def test_a_column_of_that_name_is_no_key_unless_keys_are_wanted() -> None:
    check_columns(pa.schema([("body", pa.binary()), ("key", pa.int64())]), topic="t")
    (part,) = parts(rows([b"1", b"2"], key=["no key", "no key"]), topic="t", limits=ROOMY)
    assert (part.count, part.key) == (2, "")


@pytest.mark.parametrize("key", ["", "two words", "ä", "x" * 65])
def test_a_key_that_nsqd_refuses_is_refused_before_anything_is_sent(key: str) -> None:
    made = parts(rows([b"1", b"2"], key=["good", key]), topic="t", limits=ROOMY, has_keys=True)
    with pytest.raises(NsqError, match="a row's key"):
        next(made)


def test_a_column_of_keys_is_text() -> None:
    schema = pa.schema([("body", pa.binary()), ("key", pa.int64())])
    with pytest.raises(BadOption, match="column key has to be string, not int64"):
        check_columns(schema, topic="t", has_keys=True)


def test_a_key_is_of_the_part_and_of_what_is_in_it() -> None:
    key = key_of("query/7/0", 3, b"body")
    assert key == key_of("query/7/0", 3, b"body")
    others = {key_of("query/7/1", 3, b"body"), key_of("query/7/0", 4, b"body"), key_of("query/7/0", 3, b"Body")}
    assert len(others - {key}) == 3
    long = [key_of("/very/long/path" * 30, number, b"body") for number in range(2)]
    assert len(set(long)) == 2
    assert all(is_valid_key(key.encode()) for key in long)
