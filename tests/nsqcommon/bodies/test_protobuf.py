"""Protobuf bodies become plain values, or JSON with the forms that Protobuf's JSON has."""

from __future__ import annotations

from datetime import UTC, datetime
from time import process_time

import pytest
from google.protobuf import any_pb2, struct_pb2

from nsqcommon.bodies.parsing import Unfit
from nsqcommon.bodies.protobuf import ProtobufParser
from tests.support import shop

DEFAULTS = {"id": 0, "items": [], "state": "NEW", "photo": b"", "rate": 0.0, "tags": {}}


def as_json(**values: object) -> object:
    parser = ProtobufParser(shop.descriptors(), "shop.Order", as_json=True)
    parsed = parser.parse(shop.order(**values).SerializeToString())
    assert isinstance(parsed, dict)
    return {name: value for name, value in parsed.items() if DEFAULTS.get(name) != value}


def test_fields_without_presence_have_their_defaults_and_others_are_left_out() -> None:
    parser = ProtobufParser(shop.descriptors(), "shop.Order", as_json=True)
    assert parser.parse(b"") == DEFAULTS


def test_well_known_types_have_the_forms_of_protobufs_json() -> None:
    at = shop.order()
    at.at.FromDatetime(datetime(2026, 3, 1, 12, tzinfo=UTC))
    at.at.nanos = 1
    at.took.seconds, at.took.nanos = 3, 500_000_000
    at.note.value = ""
    at.extra.update({"a": [1, None, "x"], "b": {"c": True}})
    at.mask.paths.extend(("id", "customer.name"))
    at.origin.Pack(shop.order(id=9).customer)
    found = ProtobufParser(shop.descriptors(), "shop.Order", as_json=True).parse(at.SerializeToString())
    assert isinstance(found, dict)
    assert found["at"] == "2026-03-01T12:00:00.000000001Z"
    assert found["took"] == "3.500s"
    assert found["note"] == ""
    assert found["extra"] == {"a": [1, None, "x"], "b": {"c": True}}
    assert found["mask"] == "id,customer.name"
    assert found["origin"] == {
        "@type": "type.googleapis.com/shop.Customer",
        "name": "",
        "email": "",
        "country": "",
    }


def test_enums_maps_oneofs_large_numbers_and_short_floats() -> None:
    assert as_json(state=1, tags={"a": 2}, invoice="", id=2**62, items=[{"sku": "tea", "price": 0.1}]) == {
        "state": "PAID",
        "tags": {"a": 2},
        "invoice": "",
        "id": 2**62,
        "items": [{"sku": "tea", "price": 0.1}],
    }
    assert as_json(state=7) == {"state": 7}  # an enum's value that the descriptors don't have yet


def test_an_invalid_time_does_not_hide_the_rest() -> None:
    assert as_json(at={"seconds": 2**62}, card="1") == {"at": {"seconds": 2**62, "nanos": 0}, "card": "1"}
    assert as_json(at={"nanos": -5}) == {"at": {"seconds": 0, "nanos": -5}}


def test_messages_of_any_type_are_read_only_so_deep() -> None:
    inner = any_pb2.Any(type_url="x/no.Such", value=b"secret")
    for _ in range(20):
        outer = any_pb2.Any()
        outer.Pack(inner)
        inner = outer
    text = str(as_json(origin={"type_url": inner.type_url, "value": inner.value}))
    assert text.count("'@type'") == 6
    assert "no.Such" in text


def test_only_the_fields_that_are_asked_for_are_read() -> None:
    parser = ProtobufParser(shop.descriptors(), "shop.Order", as_json=True)
    only = parser.parsing_only([("customer", "country"), ("items", "0", "sku"), ("no", "such"), ("customer",)])
    body = shop.protobuf_order(5, "FR", items=[{"sku": "tea"}])
    assert only(body) == {
        "customer": {"name": "Ada", "email": "ada5@shop.example", "country": "FR"},
        "items": [{"sku": "tea", "price": 0.0}],
    }
    assert parser.parsing_only([("customer", "country")])(body) == {"customer": {"country": "FR"}}


def test_unknown_fields_are_named_by_number() -> None:
    parser = ProtobufParser(shop.descriptors(), "shop.Customer", as_json=True)
    body = shop.order(id=1, rate=1.5, card="4929").SerializeToString()
    assert parser.unknown_fields(body) == [1, 11, 14]


@pytest.mark.parametrize(
    "body", [b"\x78\x00" * 500_000, b"\x7b\x7c" * 500_000, b"\x7b" + b"\x78\x00" * 500_000 + b"\x7c"]
)
def test_very_many_unknown_fields_are_not_named(body: bytes) -> None:
    parser = ProtobufParser(shop.descriptors(), "shop.Customer", as_json=True)
    parser.parse(body)
    began = process_time()
    assert parser.unknown_fields(body) == []
    assert process_time() - began < 0.3  # the library takes a second and 100 MB


def test_a_message_with_too_many_values_is_refused() -> None:
    parser = ProtobufParser(shop.descriptors(), "shop.Order", as_json=True, most=1000)
    with pytest.raises(Unfit, match="more than 1,000 values"):
        parser.parse(b"\x1a\x00" * 500_000)
    numbers = struct_pb2.ListValue(values=[struct_pb2.Value(number_value=1)] * 2000)
    with pytest.raises(Unfit, match="more than 1,000 values"):
        parser.parse(shop.order(extra={"fields": {"a": {"list_value": numbers}}}).SerializeToString())
