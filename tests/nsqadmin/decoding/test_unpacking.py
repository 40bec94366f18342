"""Compressed bodies are unpacked within bounds, and errors say what is wrong."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from time import process_time

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqadmin.decoding.unpacking import MOST_BYTES, UNPACKERS, Unpackable
from tests.support.examples import examples

TEXT = b'{"order_id":1}' * 50


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


PACKED = [
    ("gzip", gzip.compress(TEXT)),
    ("gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
    ("deflate", zlib.compress(TEXT)),
    ("deflate", raw_deflate(TEXT)),
    ("zstd", bytes(cramjam.zstd.compress(TEXT))),
    ("snappy", bytes(cramjam.snappy.compress_raw(TEXT))),
    ("snappy", bytes(cramjam.snappy.compress(TEXT))),
]


def zeros(size: int = 64 << 20) -> bytes:
    return b"\0" * size


BOMBS: list[tuple[str, Callable[[], bytes]]] = [
    ("gzip", lambda: gzip.compress(zeros())),
    ("gzip", lambda: gzip.compress(zeros(MOST_BYTES)) * 20),
    ("deflate", lambda: zlib.compress(zeros())),
    ("zstd", lambda: bytes(cramjam.zstd.compress(zeros()))),
    ("snappy", lambda: bytes(cramjam.snappy.compress_raw(zeros(MOST_BYTES + 1)))),
    ("snappy", lambda: b"\xff\xff\xff\xff\x0f"),
    ("snappy", lambda: bytes(cramjam.snappy.compress(zeros(2 * MOST_BYTES)))),
]


@pytest.mark.parametrize(("step", "packed"), PACKED)
def test_each_way_of_packing_is_unpacked(step: str, packed: bytes) -> None:
    assert UNPACKERS[step](packed) == TEXT


@pytest.mark.parametrize(("step", "bomb"), BOMBS)
def test_a_bomb_is_refused_before_it_fills_the_memory(step: str, bomb: Callable[[], bytes]) -> None:
    packed = bomb()
    began = process_time()
    with pytest.raises(Unpackable, match="has more than 1 MiB once it is unpacked"):
        UNPACKERS[step](packed)
    assert process_time() - began < 1.0


def test_many_small_parts_take_no_time() -> None:
    part = gzip.compress(b"")
    began = process_time()
    assert UNPACKERS["gzip"](part * 999 + gzip.compress(TEXT)) == TEXT
    with pytest.raises(Unpackable, match="has more than 1,000 parts"):
        UNPACKERS["gzip"](part * (MOST_BYTES // len(part)))
    assert process_time() - began < 0.5


@pytest.mark.parametrize(
    ("step", "packed", "why"),
    [
        ("gzip", b"", "is empty"),
        ("gzip", b'{"a":1}', "incorrect header check in the part that begins at byte 0"),
        ("gzip", gzip.compress(TEXT)[:-9], "ends too early, at byte"),
        ("gzip", gzip.compress(TEXT) + b"x", "ends too early, at byte"),
        ("deflate", zlib.compress(TEXT) + b"x", "has trailing data from byte"),
        ("zstd", b"junkjunk", "unknown frame descriptor"),
        ("snappy", b"\x10ab", "corrupt input"),
    ],
)
def test_what_is_not_packed_so_says_why(step: str, packed: bytes, why: str) -> None:
    with pytest.raises(Unpackable, match=why):
        UNPACKERS[step](packed)


@given(packed=st.sampled_from(PACKED), at=st.integers(0, 60), noise=st.binary(max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_any_bytes_are_unpacked_or_refused(packed: tuple[str, bytes], at: int, noise: bytes) -> None:
    step, body = packed
    size = 0
    try:
        size = len(UNPACKERS[step](body[:at] + noise + body[at + len(noise) :]))
    except Unpackable:
        pass
    assert size <= MOST_BYTES
