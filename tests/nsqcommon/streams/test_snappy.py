"""Snappy's framing format: NSQ's test vector, round trips, and refusals."""

from __future__ import annotations

import random

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.streams.layer import StreamError
from nsqcommon.streams.snappy import SnappyLayer

IDENTIFIER = bytes.fromhex("ff060000734e61507059")
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


def masked(data: bytes) -> bytes:
    crc: int = crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def chunk(kind: int, content: bytes) -> bytes:
    return bytes((kind,)) + len(content).to_bytes(3, "little") + content


def test_the_first_ok_is_nsqs_byte_for_byte() -> None:
    expected = IDENTIFIER + bytes.fromhex("010e000026982bcf00000006000000004f4b")
    assert SnappyLayer().encode(OK) == expected


def test_the_identifier_is_sent_once() -> None:
    layer = SnappyLayer()
    layer.encode(OK)
    assert not layer.encode(OK).startswith(IDENTIFIER)


def test_nothing_to_send_is_nothing_on_the_wire() -> None:
    assert SnappyLayer().encode(b"") == b""


def test_what_compresses_well_is_compressed_in_chunks_of_64_kib() -> None:
    encoded = SnappyLayer().encode(bytes(200_000))
    assert encoded[10] == 0x00
    assert len(encoded) < 20_000
    assert SnappyLayer().decode(encoded) == bytes(200_000)


def test_a_bomb_goes_off_a_piece_at_a_time() -> None:
    bomb = SnappyLayer().encode(bytes(50 << 20))
    layer = SnappyLayer()
    size = len(layer.decode(bomb))
    assert size == 512 << 10
    while layer.has_more:
        piece = layer.decode(b"")
        assert len(piece) <= 512 << 10
        size += len(piece)
    assert size == 50 << 20


def test_what_does_not_compress_travels_as_it_is() -> None:
    data = random.Random(1).randbytes(1000)
    assert SnappyLayer().encode(data)[10] == 0x01


@given(st.lists(st.binary(max_size=300) | st.integers(0, 100_000).map(bytes)), st.integers(1, 5000))
def test_whatever_the_packets_it_comes_back(pieces: list[bytes], step: int) -> None:
    sender, receiver = SnappyLayer(), SnappyLayer()
    wire = b"".join(map(sender.encode, pieces))
    came = b"".join(receiver.decode(wire[at : at + step]) for at in range(0, len(wire), step))
    assert came == b"".join(pieces)


def test_padding_skippable_chunks_and_another_identifier_are_passed_over() -> None:
    wire = IDENTIFIER + chunk(0xFE, bytes(500)) + chunk(0x80, b"?") + IDENTIFIER + chunk(0x01, masked(OK) + OK)
    layer = SnappyLayer()
    assert b"".join(layer.decode(wire[at : at + 7]) for at in range(0, len(wire), 7)) == OK


def test_a_huge_skippable_chunk_is_not_kept() -> None:
    layer = SnappyLayer()
    layer.decode(IDENTIFIER + b"\xfd\xff\xff\xff" + bytes(1 << 20))
    assert not layer._rest


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (chunk(0x01, masked(OK) + OK), "no stream identifier"),
        (b"PUB a", "no stream identifier"),
        (chunk(0xFF, b"sNaPpy"), "wrong stream identifier"),
        (chunk(0xFF, b"sNaP"), "wrong stream identifier"),
        (IDENTIFIER + chunk(0x01, b"\0\0\0\0" + OK), "wrong checksum"),
        (IDENTIFIER + chunk(0x02, b"abc"), "unknown chunk 0x02"),
        (IDENTIFIER + chunk(0x7F, b"abc"), "unknown chunk 0x7f"),
        (IDENTIFIER + chunk(0x00, b"abc"), "invalid chunk size 3"),
        (IDENTIFIER + chunk(0x00, masked(b"") + b"\xff\xff\xff\xff\xff"), "snappy"),
        (IDENTIFIER + chunk(0x00, masked(b"") + b"\x0aabc"), "snappy"),
        (IDENTIFIER + chunk(0x01, masked(bytes(65_537)) + bytes(65_537)), "too large"),
        (IDENTIFIER + b"\x01\xff\xff\xff", "invalid chunk size 16777215"),
    ],
)
def test_nonsense_is_refused(wire: bytes, reason: str) -> None:
    with pytest.raises(StreamError, match=reason):
        SnappyLayer().decode(wire)


@given(st.binary(max_size=200))
def test_garbage_never_does_worse_than_to_be_refused(garbage: bytes) -> None:
    try:
        SnappyLayer().decode(IDENTIFIER + garbage)
    except StreamError:
        pass
