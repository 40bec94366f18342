"""Decoding bodies: each error names cause and field, and the quick way gives the same as the slow one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcommon.bodies.self_describing import JsonParser, MsgpackParser
from pyspark_nsq.bodies.ddl import as_nullable, parse_fields
from pyspark_nsq.bodies.decoding import (
    EXTRA,
    MISSING,
    Decoded,
    RawDecoder,
    RecordDecoder,
    json_decoder,
    msgpack_decoder,
)
from tests.pyspark_nsq.bodies.bodies import json_bodies, schemas
from tests.support.examples import examples

if TYPE_CHECKING:
    import msgspec

ORDER = """user string not null, amount double, n tinyint, f float, big bigint, at timestamp, day date, ok boolean,
    items array<struct<sku: string not null, price: decimal(6, 2)>>, tags map<string, bigint>, raw binary"""


def decode(decoder: RecordDecoder, *bodies: bytes | None) -> Decoded:
    found = decoder.decode(pa.array(bodies, pa.binary()))
    if found.values is not None:
        found.values.validate(full=True)
    return found


def errors_of(found: Decoded, rows: int) -> list[str | None]:
    return [None] * rows if found.errors is None else list(found.errors.to_pylist())


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"user": "\xff"}', "not UTF-8: byte 0xff at 10"),
        (b'{"user" "a"}', "not JSON: expected ':' at byte 8"),
        (b'{"user": "a", "amount": NaN}', "not JSON: invalid character at byte 24"),
        (b'{"user": "a"', "not JSON: ends too early at byte 12"),
        (b"", "not JSON: the body is empty"),
        (b"[" * 5000, "not JSON: nested too deep"),
        (b"[1]", "not an object: array"),
        (b"null", "not an object: null"),
        (b'{"user": 5}', "wrong type: value.user: expected string, found integer 5"),
        (b'{"user": "a", "amount": "12"}', "wrong type: value.amount: expected double, found string '12'"),
        (b'{"user": "a", "amount": true}', "wrong type: value.amount: expected double, found boolean True"),
        (b'{"user": "a", "n": 1.5}', "wrong type: value.n: expected tinyint, found number 1.5"),
        (b'{"user": "a", "tags": [1]}', "wrong type: value.tags: expected map<string, bigint>, found array"),
        (b'{"user": "a", "tags": {"x": "y"}}', "wrong type: value.tags['x']: expected bigint, found string 'y'"),
        (
            b'{"user": "a", "items": [{"sku": "s"}, {"sku": "t", "price": {}}]}',
            "wrong type: value.items[1].price: expected decimal(6, 2), found object",
        ),
        (b'{"user": "a", "raw": "?"}', "wrong type: value.raw: expected binary as base64, found string '?'"),
        (b'{"user": "a", "n": 128}', "overflow: value.n: 128 does not fit into tinyint"),
        (
            b'{"user": "a", "big": 9223372036854775808}',
            "overflow: value.big: 9223372036854775808 does not fit into bigint",
        ),
        (b'{"user": "a", "amount": 1e400}', "overflow: value.amount: 1E+400 does not fit into double"),
        (b'{"user": "a", "f": 1e39}', "overflow: value.f: 1E+39 does not fit into float"),
        (
            b'{"user": "a", "items": [{"sku": "s", "price": 12345.5}]}',
            "overflow: value.items[0].price: 12345.5 does not fit into decimal(6, 2)",
        ),
        (b'{"amount": 1}', "missing field: value.user: is required"),
        (b'{"user": null}', "missing field: value.user: null, and the schema says not null"),
        (b'{"user": "a", "items": [{}]}', "missing field: value.items[0].sku: is required"),
        (
            b'{"user": "a", "at": "2026-03-01T25:00:00Z"}',
            "bad time: value.at: '2026-03-01T25:00:00Z' is not a timestamp",
        ),
        (b'{"user": "a", "day": "2026-02-30"}', "bad time: value.day: '2026-02-30' is not a date"),
        (
            b'{"user": "a", "at": 1700000000000}',
            "bad time: value.at: 1700000000000 seconds since 1970 are outside the years 1 to 9999",
        ),
        (b'{"user": "a"} {"user": "b"}', "trailing data: from byte 14 on"),
        (b'{"user": "a"}x', "trailing data: from byte 13 on"),
    ],
)
def test_an_error_names_the_field_and_the_cause(body: bytes, error: str) -> None:
    good = b'{"user": "a"}'
    found = decode(json_decoder(parse_fields(ORDER)), good, body, good)
    assert errors_of(found, 3) == [None, error, None]
    assert found.values is not None
    assert [value and value["user"] for value in found.values.to_pylist()] == ["a", None, "a"]


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("double", "1", 1.0),
        ("double", '"-Infinity"', float("-inf")),
        ("double", "9007199254740993", 9007199254740992.0),
        ("bigint", "9223372036854775807", 9223372036854775807),
        ("int", "1.0", 1),
        ("decimal(6, 2)", "12.345", "12.35"),
        ("decimal(6, 2)", '"12.5"', "12.50"),
        ("decimal(38, 18)", "0.1234567890123456789", "0.123456789012345679"),
        ("binary", '"aGk="', b"hi"),
        ("timestamp", '"2026-03-01T12:00:00.123456789Z"', "2026-03-01 12:00:00.123456+00:00"),
        ("timestamp", '"2026-03-01 12:00:00+02:00"', "2026-03-01 10:00:00+00:00"),
        ("timestamp", '"2026-03-01T12:00:00"', "2026-03-01 12:00:00+00:00"),
        ("timestamp", '"2026-03-01"', "2026-03-01 00:00:00+00:00"),
        ("timestamp", "1700000000", "2023-11-14 22:13:20+00:00"),
        ("timestamp_ntz", '"2026-03-01T12:00:00"', "2026-03-01 12:00:00"),
        ("string", '"\\ud83d\\ude00"', "\U0001f600"),
        ("array<int>", "[1, null]", [1, None]),
        ("map<string, int>", '{"a": 1, "a": 2}', [("a", 2)]),
        ("struct<a: int>", "{}", {"a": None}),
    ],
)
def test_a_fitting_value_is_decoded(field: str, text: str, value: object) -> None:
    found = decode(json_decoder(parse_fields(f"x {field}")), f'{{"x": {text}}}'.encode())
    assert errors_of(found, 1) == [None]
    assert found.values is not None
    [row] = found.values.to_pylist()
    assert (str(row["x"]) if isinstance(value, str) else row["x"]) == value


def test_a_message_without_a_body_has_neither_value_nor_error() -> None:
    found = decode(json_decoder(parse_fields("a int")), None, b'{"a": 1}')
    assert found.errors is None
    assert found.values is not None
    assert found.values.to_pylist() == [None, {"a": 1}]


def test_nothing_is_decoded_of_nothing() -> None:
    found = decode(json_decoder(parse_fields(ORDER)))
    assert found.values is not None
    assert len(found.values) == 0


def test_raw_bodies_have_no_values_and_no_errors() -> None:
    assert RawDecoder().decode(pa.array([b"x"], pa.binary())) == Decoded(None, None, {})


def test_extra_and_missing_fields_are_counted_wherever_they_are() -> None:
    decoder = json_decoder(parse_fields("a int, s struct<b: int>, l array<struct<c: int>>"))
    found = decode(
        decoder,
        b'{"a": 1, "s": {"b": 1}, "l": [{"c": 1}]}',  # all
        b'{"a": null, "s": {}, "l": [{}, {"c": null}]}',  # b and c are missing; null is there
        b'{"x": 1, "s": {"b": 1, "y": 2}, "l": [{"c": 1, "z": 3}]}',  # a is missing; x, y, z are extra
        b"{",
    )
    assert found.counts == {EXTRA: 3, MISSING: 3}


def test_a_value_type_is_nullable_for_tables_whose_older_rows_lack_a_field() -> None:
    decoder = json_decoder(parse_fields("a int not null, s struct<b: int not null>"))
    assert decoder.value_type == as_nullable(parse_fields("a int, s struct<b: int>"))
    found = decode(decoder, b'{"a": 1, "s": {"b": 2}}')
    assert found.values is not None
    assert found.values.type == decoder.value_type


class SlowJson(JsonParser):
    def typed(self, record: type[msgspec.Struct]) -> Callable[[bytes], object] | None:
        return None


class SlowMsgpack(MsgpackParser):
    def typed(self, record: type[msgspec.Struct]) -> Callable[[bytes], object] | None:
        return None


def shown(found: Decoded) -> tuple[Any, ...]:
    """Return the repr, because -0.0 equals 0.0, and NaN does not equal NaN."""
    assert found.values is not None
    return repr(found.values.to_pylist()), found.values.type, errors_of(found, len(found.values)), dict(found.counts)


@settings(deadline=None, max_examples=examples(70))
@given(st.data())
def test_the_quick_way_is_the_slow_way(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    bodies = data.draw(st.lists(st.one_of(*[json_bodies(schema)] * 9, st.none()), min_size=1, max_size=8))
    quick, slow = json_decoder(schema), RecordDecoder(schema, SlowJson(exact=False))
    together = decode(quick, *bodies)
    assert shown(together) == shown(decode(slow, *bodies))


@settings(deadline=None, max_examples=examples(40))
@given(st.data())
def test_a_body_is_the_same_whatever_lies_beside_it(data: st.DataObject) -> None:
    schema = data.draw(schemas(rich=True))
    bodies = data.draw(st.lists(json_bodies(schema), min_size=2, max_size=6))
    decoder = json_decoder(schema)
    together = decode(decoder, *bodies)
    alone = [decode(decoder, body) for body in bodies]
    assert together.values is not None
    rows = [row for it in alone if it.values is not None for row in it.values.to_pylist()]
    assert repr(together.values.to_pylist()) == repr(rows)
    assert errors_of(together, len(bodies)) == [error for it in alone for error in errors_of(it, 1)]


@settings(deadline=None, max_examples=examples(30))
@given(st.data())
def test_msgpack_is_the_same_quick_and_slow(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    bodies = []
    for text in data.draw(st.lists(json_bodies(schema), min_size=1, max_size=6)):
        try:
            bodies.append(msgpack.packb(json.loads(text)))
        except (ValueError, OverflowError):
            bodies.append(text)
    quick, slow = msgpack_decoder(schema), RecordDecoder(schema, SlowMsgpack())
    assert shown(decode(quick, *bodies)) == shown(decode(slow, *bodies))


def test_a_batch_of_bodies_that_all_have_extra_fields_is_decoded_just_the_same() -> None:
    decoder = json_decoder(parse_fields("a int"))
    bodies = [b'{"a": %d, "b": 1}' % number for number in range(300)] + [b'{"a": 300}']
    found = decode(decoder, *bodies)
    assert found.values is not None
    assert [row["a"] for row in found.values.to_pylist()] == list(range(301))
    assert found.counts == {EXTRA: 300, MISSING: 0}


@pytest.mark.parametrize("make", [json_decoder, msgpack_decoder])
def test_a_decoder_travels_to_executors(make: Callable[[pa.StructType], RecordDecoder]) -> None:
    decoder = pickle.loads(pickle.dumps(make(parse_fields(ORDER))))
    body = {"user": "a", "amount": 1.5}
    packed = json.dumps(body).encode() if make is json_decoder else msgpack.packb(body)
    found = decode(decoder, packed)
    assert found.values is not None
    assert found.values.to_pylist()[0]["amount"] == 1.5


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"\x82\xa1a", "not MessagePack: ends too early at byte 3"),
        (b"\x81\xa1a\xc1", "not MessagePack: invalid opcode '\\xc1' at byte 3"),
        (b"\x81\xa1a\x01\x02", "trailing data: from byte 4 on"),
        (b"\x81\xa1a\xa1\xff", "not UTF-8: a string with byte 0xff"),
        (b"\x93\x01\x02\x03", "not an object: array"),
        (b"\x81\xa1a\xcd\x01\x00", "overflow: value.a: 256 does not fit into tinyint"),
        (b"\x81\xa1a\xc4\x01x", "wrong type: value.a: expected tinyint, found binary"),
    ],
)
def test_msgpack_has_the_same_causes(body: bytes, error: str) -> None:
    assert errors_of(decode(msgpack_decoder(parse_fields("a tinyint")), body), 1) == [error]


def test_msgpacks_own_timestamps_are_timestamps() -> None:
    body = msgpack.packb({"at": msgpack.Timestamp(1_700_000_000, 123_456_000)})
    found = decode(msgpack_decoder(parse_fields("at timestamp")), body)
    assert found.values is not None
    assert str(found.values.to_pylist()[0]["at"]) == "2023-11-14 22:13:20.123456+00:00"
