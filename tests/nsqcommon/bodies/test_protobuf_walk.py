"""A Protobuf body that its library refuses: the field and the byte are named."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcommon.bodies.parsing import Cause, Unfit
from nsqcommon.bodies.protobuf import ProtobufParser
from nsqcommon.bodies.protobuf_walk import find_misfit
from tests.support import shop
from tests.support.examples import examples

PARSER = ProtobufParser(shop.descriptors(), "shop.Order", as_json=True, most=1000)
KIND = shop.order().DESCRIPTOR
WHOLE = shop.protobuf_order(300, items=[{"sku": "tea", "price": 1.5}], rate=2.5)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"\xff", "ends after the body's end, at byte 1"),
        (b"\x08", "field 1 (id) ends after the body's end, at byte 1"),
        (b"\x12\x05\x1a\x02D", "field 2 (customer) has 5 bytes, of which only 3 are there, at byte 1"),
        (b"\x12\x03\x1a\x05DE", "field 3 (customer.country) has 5 bytes, of which only 1 are there, at byte 3"),
        (b"\x12\x04\x1a\x02\xffE", "field 3 (customer.country) has byte 0xff, which is not UTF-8, at byte 4"),
        (b"\x71\x00\x00", "field 14 (rate) ends after the body's end, at byte 3"),
        (b"\x1a\x03\x15\x00\x00\x08\x01", "field 2 (items.price) ends after the end of its message, at byte 5"),
        (b"\x0e\x00", "field 1 (id) has wire type 6, which does not exist, at byte 1"),
        (b"\x00", "0 is no number of a field at byte 0"),
        (b"\x0c", "the end of a group, 1, that has not begun, at byte 0"),
        (b"\xa3\x06\x08\x01", "field 100 is a group without an end at byte 4"),
        (b"\x08" + b"\xff" * 11, "field 1 (id) has a number of more than 10 bytes at byte 1"),
    ],
)
def test_the_field_and_the_byte_are_named(body: bytes, error: str) -> None:
    with pytest.raises(DecodeError):
        type(shop.order()).FromString(body)
    with pytest.raises(Unfit) as refused:
        PARSER.parse(body)
    assert refused.value.detail == error
    assert refused.value.cause is (Cause.NOT_UTF8 if "UTF-8" in error else Cause.NOT_PROTOBUF)


def test_an_order_that_replaces_a_hundred_others_is_nested_too_deeply() -> None:
    body = b""
    for _ in range(120):
        length = len(body)
        body = b"\x7a" + (bytes([length & 127 | 128, length >> 7]) if length > 127 else bytes([length])) + body
    with pytest.raises(Unfit) as refused:
        PARSER.parse(body)
    assert "(replaces.replaces.replaces.….replaces.replaces) is nested deeper than 100 levels" in refused.value.detail


@given(cut=st.integers(0, len(WHOLE)), noise=st.binary(max_size=30))
@settings(max_examples=examples(100), deadline=None)
def test_any_bytes_are_read_or_refused_where_the_library_refuses_them(cut: int, noise: bytes) -> None:
    body = WHOLE[:cut] + noise
    try:
        PARSER.parse(body)
        is_read = True
    except Unfit as unfit:
        is_read = "values" in unfit.detail
        assert len(unfit.detail) < 300  # noqa: PT017
    if is_read:
        assert find_misfit(body, KIND) is None
