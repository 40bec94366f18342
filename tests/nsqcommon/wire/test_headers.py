"""Headers as bytes: what is encoded comes back, and what is not right is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.wire.headers import (
    MOST_BYTES,
    MOST_PAIRS,
    NONE,
    BadHeaders,
    decode_headers,
    encode_headers,
    end_of_headers,
    have_equal_shapes,
    header_offsets,
    value_of,
)

NAMES = st.from_regex(r"\A[a-z0-9][a-z0-9_.-]{0,20}\Z")
HEADERS = st.dictionaries(NAMES, st.binary(max_size=100), max_size=20)


@given(HEADERS)
def test_what_is_encoded_comes_back(headers: dict[str, bytes]) -> None:
    encoded = encode_headers(headers)
    assert decode_headers(encoded) == headers
    assert decode_headers(b"xyz" + encoded + b"more", 3) == headers
    assert end_of_headers(b"xyz" + encoded + b"more", 3) == 3 + len(encoded)


@given(HEADERS, st.binary(max_size=9), st.sampled_from((b"", b"\1a", b"\7nsq-ttl", b"\7nsq-ttl\0\1")))
def test_one_value_is_found_although_other_values_look_like_its_name(
    headers: dict[str, bytes], value: bytes, planted: bytes
) -> None:
    headers = {name: planted + it for name, it in headers.items()}
    for found in (headers, headers | {"nsq-ttl": value}, {"nsq-ttl": value} | headers):
        data = b"xyz" + encode_headers(found)
        expected = found.get("nsq-ttl")
        assert value_of(b"\7nsq-ttl", data + b"\7nsq-ttl\0\1x", 3, len(data)) == expected


def test_the_layout() -> None:
    assert encode_headers({}) == NONE == b"\0\0"
    assert encode_headers({"a": b"xy", "b.c": "\u00e4"}) == b"\0\x0e\x01a\0\x02xy\x03b.c\0\x02\xc3\xa4"


def means_something(data: bytes) -> None:
    try:
        headers = decode_headers(data)
    except BadHeaders:
        return
    assert encode_headers(headers) == data[: end_of_headers(data)]


@given(HEADERS.filter(bool), st.data())
def test_headers_are_like_the_first_if_only_values_differ(first: dict[str, bytes], data: st.DataObject) -> None:
    def another() -> dict[str, bytes]:
        return {name: data.draw(st.binary(min_size=len(value), max_size=len(value))) for name, value in first.items()}

    alike = [encode_headers(first), *(encode_headers(another()) for _ in range(3))]
    assert have_equal_shapes(b"".join(alike), 4)
    changed = bytearray(alike[2])
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    if have_equal_shapes(b"".join([*alike[:2], changed, alike[3]]), 4):
        assert decode_headers(bytes(changed)).keys() == first.keys()


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_means_something(data: bytes) -> None:
    means_something(data)


@given(HEADERS, st.data())
def test_headers_that_are_cut_short_or_changed_are_refused_or_mean_something(
    headers: dict[str, bytes], data: st.DataObject
) -> None:
    encoded = bytearray(encode_headers(headers))
    place = data.draw(st.integers(0, len(encoded) - 1))
    if data.draw(st.booleans()):
        encoded[place] = data.draw(st.integers(0, 255))
    else:
        del encoded[place:]
    means_something(bytes(encoded))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"A": b""}, "invalid header name"),
        ({"": b""}, "invalid header name"),
        ({"-a": b""}, "invalid header name"),
        ({"a b": b""}, "invalid header name"),
        ({"a\n": b""}, "invalid header name"),
        ({"a" * 65: b""}, "invalid header name"),
        ({"\u00e4": b""}, "invalid header name"),
        ({"a": b"x" * MOST_BYTES}, f"more than {MOST_BYTES} bytes"),
        ({f"n{number}": b"" for number in range(MOST_PAIRS + 1)}, f"too many headers 65 > {MOST_PAIRS}"),
    ],
)
def test_what_cannot_be_encoded(headers: dict[str, bytes], why: str) -> None:
    with pytest.raises(BadHeaders, match=why):
        encode_headers(headers)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no length"),
        (b"\0", "no length"),
        (b"\0\5\1a\0\0", "end too early"),
        (b"\x10\x01" + bytes(5000), f"headers too big 4097 > {MOST_BYTES}"),
        (b"\0\5\1a\0\2x", "value of header 'a' ends too early"),
        (b"\0\4\4abc", "invalid header name"),
        (b"\0\1\1", "invalid header name"),
        (b"\0\x08\1a\0\0\1a\0\0", "comes twice"),
        (b"\0\4\1A\0\0", "invalid header name"),
        (b"\x01\x86" + b"".join(b"\3%03d\0\0" % number for number in range(65)), f"too many headers 65 > {MOST_PAIRS}"),
    ],
)
def test_what_cannot_be_decoded(data: bytes, why: str) -> None:
    with pytest.raises(BadHeaders, match=why):
        decode_headers(data)


@given(st.lists(HEADERS, max_size=10))
def test_places_in_an_area(all_headers: list[dict[str, bytes]]) -> None:
    encoded = list(map(encode_headers, all_headers))
    area = b"".join(encoded)
    places = header_offsets(area, len(encoded))
    assert places is not None
    assert [decode_headers(area, place) for place in places[:-1]] == all_headers
    assert places[-1] == len(area)
    assert header_offsets(area, len(encoded) + 1) is None
    assert header_offsets(area + b"x", len(encoded)) is None


@pytest.mark.parametrize("length", [0, 5])
def test_places_of_headers_of_equal_length_are_a_range(length: int) -> None:
    area = encode_headers({"a": bytes(length)}) * 3
    assert header_offsets(area, 3) == range(0, len(area) + 1, len(area) // 3)
    assert header_offsets(NONE * 3, 3) == range(0, 7, 2)
    assert header_offsets(area[:-1], 3) is None


@pytest.mark.parametrize("count", [2, 300, 20_000])
def test_one_that_is_not_like_the_first_is_found_among_many(count: int) -> None:
    good, bad = encode_headers({"a": b"1"}), encode_headers({"b": b"1"})
    assert have_equal_shapes(good * count, count)
    for place in (1, count // 2, count - 1):
        assert not have_equal_shapes(good * place + bad + good * (count - place - 1), count)
