"""Deflate as NSQ speaks it: a raw stream, flushed at every send, with bounded memory."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.streams.deflate import DeflateLayer
from nsqcommon.streams.layer import StreamError

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
OBSERVED = bytes.fromhex("6260606063606060f0f706000000ffff000000ffff")  # of a Go nsqd, with an empty block


def decode_all(layer: DeflateLayer, data: bytes) -> bytes:
    pieces = [layer.decode(data)]
    while layer.has_more:
        pieces.append(layer.decode(b""))
    return b"".join(pieces)


def test_the_first_ok_is_a_raw_stream_that_ends_with_a_sync_marker() -> None:
    encoded = DeflateLayer(6).encode(OK)
    assert encoded.endswith(b"\x00\x00\xff\xff")
    assert zlib.decompressobj(-15).decompress(encoded) == OK


def test_empty_sync_blocks_of_a_go_peer_are_tolerated() -> None:
    assert DeflateLayer(6).decode(OBSERVED) == OK


@given(st.lists(st.binary(max_size=300)), st.integers(1, 9), st.integers(1, 500))
def test_whatever_the_packets_it_comes_back(pieces: list[bytes], level: int, step: int) -> None:
    sender, receiver = DeflateLayer(level), DeflateLayer(level)
    wire = b"".join(map(sender.encode, pieces))
    came = b"".join(decode_all(receiver, wire[at : at + step]) for at in range(0, len(wire), step))
    assert came == b"".join(pieces)


def test_a_bomb_goes_off_a_piece_at_a_time() -> None:
    layer = DeflateLayer(9)
    bomb = DeflateLayer(9).encode(bytes(50 << 20))
    assert len(bomb) < 60_000
    assert len(layer.decode(bomb)) == 128 << 10
    size, turns = 128 << 10, 1
    while layer.has_more:
        size += len(layer.decode(b""))
        turns += 1
    assert (size, turns >= 400) == (50 << 20, True)


@pytest.mark.parametrize("nonsense", [b"\x07", b"\xff\xff\xff\xff", b"PUB topic\n"])
def test_nonsense_is_refused(nonsense: bytes) -> None:
    with pytest.raises(StreamError, match="deflate"):
        decode_all(DeflateLayer(6), nonsense)


def test_nothing_follows_the_end_of_a_stream() -> None:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    ended = compressor.compress(OK) + compressor.flush()
    with pytest.raises(StreamError, match="after the end"):
        DeflateLayer(6).decode(ended + b"more")
