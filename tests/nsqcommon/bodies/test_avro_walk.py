"""A body is walked through by its schema: where it doesn't fit is named, and what would hurt fastavro is refused."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcommon.bodies.avro import AvroParser
from nsqcommon.bodies.parsing import Unfit
from tests.support.examples import examples

CHAIN = {"type": "record", "name": "chain", "fields": [{"name": "next", "type": ["null", "chain"]}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
ITEM = {
    "type": "record",
    "name": "item",
    "fields": [{"name": "sku", "type": "string"}, {"name": "size", "type": "shop.size"}],
}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "shop.order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "size", "type": {"type": "enum", "name": "size", "symbols": ["S", "L"]}},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
        {"name": "notes", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "price", "type": ["null", DECIMAL, "double"]},
        {"name": "check", "type": {"type": "fixed", "name": "check", "size": 2}},
    ],
}
SOLD = {
    "id": 7,
    "size": "L",
    "items": [{"sku": "tea", "size": "S"}],
    "notes": {"a": None, "b": "x"},
    "price": 1.5,
    "check": b"ok",
}


def written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def refusal(schema: Any, body: bytes, most: int | None = None) -> str:
    with pytest.raises(Unfit) as refused:
        AvroParser(json.dumps(schema), most=most).parse(body)
    return f"{refused.value.cause}: {refused.value.detail}"


def an_array_of(item: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "it", "type": {"type": "array", "items": item}}]}


def test_a_chain_of_records_that_would_overflow_the_stack_is_refused() -> None:
    # fastavro's recursion is in C: with these bytes it ended the whole process.
    assert "nested deeper than 100 levels at byte 100" in refusal(CHAIN, b"\x02" * 5_000)
    assert "next.next.next.….next.next is nested" in refusal(CHAIN, b"\x02" * 5_000)
    assert AvroParser(json.dumps(CHAIN)).parse(b"\x02\x02\x00") == {"next": {"next": {"next": None}}}


@pytest.mark.parametrize("item", ["null", {"type": "record", "name": "empty", "fields": []}])
def test_items_that_take_no_bytes_are_bounded(item: Any) -> None:
    billion = b"\x80\xa8\xd6\xb9\x07\x00"
    assert refusal(an_array_of(item), billion).endswith("it has more than 100,000 items that take no bytes, at byte 0")
    assert len(AvroParser(json.dumps(an_array_of("null"))).parse(b"\x06\x00")["it"]) == 3  # type: ignore[index]


def test_a_decimal_of_a_megabyte_is_refused() -> None:
    record = {"type": "record", "name": "r", "fields": [{"name": "price", "type": DECIMAL}]}
    body = b"\x80\x80\x80\x01" + b"\x7f" * (1 << 20)
    assert refusal(record, body) == "not Avro: price is a decimal of more than 1,024 bytes at byte 0"


def test_a_body_with_too_many_values_is_refused_if_they_are_counted() -> None:
    body = written(an_array_of("int"), {"it": list(range(50))})
    assert refusal(an_array_of("int"), body, most=10) == "not Avro: has more than 10 values, at byte 0"
    assert AvroParser(json.dumps(an_array_of("int")), most=51).parse(body) == {"it": list(range(50))}
    longer = written(an_array_of("long"), {"it": [2**60] * 50})
    assert AvroParser(json.dumps(an_array_of("long")), most=51).parse(longer) == {"it": [2**60] * 50}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "not Avro: id ends after the body's end, at byte 0"),
        (b"\x0e\x09", "not Avro: size has symbol -5 of an enum with 2, at byte 1"),
        (b"\x0e\x00\x14\x06tea", "not Avro: items has 10 items and only 4 bytes for them, at byte 2"),
        (b"\x0e\x00\x04\x06tea\x00\x06t", "not Avro: items[1].sku has 3 bytes, of which only 1 are there, at byte 8"),
        (b"\x0e\x00\x00\x02\x02\xff", "not UTF-8: notes[0] has byte 0xff, which is not UTF-8, at byte 5"),
        (b"\x0e\x00\x00\x00\x0a", "not Avro: price has branch 5 of a union with 3, at byte 4"),
        (b"\x0e\x00\x00\x00\x00k", "not Avro: check ends after the body's end, at byte 6"),
        (b"\xff" * 12 + b"\x00", "not Avro: id has a number of more than 10 bytes at byte 0"),
        (written(ORDER, SOLD) + b"!", f"trailing data: from byte {len(written(ORDER, SOLD))} on"),
    ],
)
def test_the_field_and_the_byte_are_named(body: bytes, error: str) -> None:
    assert refusal(ORDER, body).startswith(error)


@given(
    cut=st.integers(0, 60),
    noise=st.binary(max_size=40),
    schema=st.sampled_from([ORDER, CHAIN, an_array_of("null"), an_array_of(ORDER)]),
)
@settings(max_examples=examples(80), deadline=None)
def test_any_bytes_are_read_or_refused_with_a_cause(cut: int, noise: bytes, schema: Any) -> None:
    parser = AvroParser(json.dumps(schema), most=1000)
    why = ""
    try:
        parser.parse(written(ORDER, SOLD)[:cut] + noise)
    except Unfit as unfit:
        why = unfit.detail
    assert len(why) < 300
