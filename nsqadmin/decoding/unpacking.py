"""Unpacks compressed bodies, within bounds: a thousand bytes can claim to be a gigabyte."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

MOST_BYTES: Final = 1 << 20  # of a body before and after each step
_MOST_PARTS: Final = 1000  # of gzip; the rest of the body is copied for each
_GZIP: Final = 31  # zlib's word for gzip
_ZLIB: Final = 15
_RAW: Final = -15
_SNAPPY_FRAMES: Final = b"\xff\x06\x00\x00sNaPpY"


class Unpackable(ValueError):
    """The body can't be unpacked; the message says why."""


def check_size(body: bytes) -> bytes:
    """Return the body. Raise Unpackable if it is too large to decode."""
    if len(body) > MOST_BYTES:
        raise Unpackable(f"has more than {MOST_BYTES >> 20} MiB, so it is not decoded")
    return body


def _too_large() -> Unpackable:
    return Unpackable(f"has more than {MOST_BYTES >> 20} MiB once it is unpacked, so it is not decoded")


def _gzip(body: bytes) -> bytes:
    parts: list[bytes] = []
    rest, size = body, 0
    while rest:  # a file of gzip may have several parts, one after the other
        if len(parts) == _MOST_PARTS:
            raise Unpackable(f"has more than {_MOST_PARTS:,} parts")
        part, rest = _inflated(rest, _GZIP, MOST_BYTES - size, len(body) - len(rest))
        parts.append(part)
        size += len(part)
    if not parts:
        raise Unpackable("is empty")
    return b"".join(parts)


def _deflate(body: bytes) -> bytes:
    """Unpack what HTTP calls deflate: zlib's format, or as many programs write it, without its header."""
    has_header = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    unpacked, rest = _inflated(body, _ZLIB if has_header else _RAW, MOST_BYTES, 0)
    if rest:
        raise Unpackable(f"has trailing data from byte {len(body) - len(rest)} on")
    return unpacked


def _inflated(body: bytes, kind: int, most: int, begin: int) -> tuple[bytes, bytes]:
    """Unpack one part that begins at this byte, and return it with the rest of the body."""
    unpacker = zlib.decompressobj(kind)
    try:
        unpacked = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise Unpackable(f"{_reason_of(error)} in the part that begins at byte {begin}") from None
    if len(unpacked) > most:
        raise _too_large()
    if not unpacker.eof:
        raise Unpackable(f"ends too early, at byte {begin + len(body)}")
    return unpacked, unpacker.unused_data


def _reason_of(error: zlib.error) -> str:
    """Return zlib's words, such as `incorrect header check`, without its numbers."""
    return str(error).rpartition(": ")[2]


# cramjam is imported where it is used, because an nsqadmin without such bodies doesn't need it.


def _zstd(body: bytes) -> bytes:
    import cramjam

    return _with_cramjam(cramjam.zstd.decompress_into, body)


def _snappy(body: bytes) -> bytes:
    """Unpack snappy, as a block or in frames."""
    import cramjam

    if body.startswith(_SNAPPY_FRAMES):
        return _with_cramjam(cramjam.snappy.decompress_into, body)
    try:
        size = cramjam.snappy.decompress_raw_len(body)
    except cramjam.DecompressionError as error:
        raise Unpackable(_words_of(error)) from None
    if size > MOST_BYTES:
        raise _too_large()
    return _with_cramjam(cramjam.snappy.decompress_raw_into, body, size)


def _with_cramjam(unpack: Callable[[bytes, bytearray], int], body: bytes, size: int = MOST_BYTES) -> bytes:
    if not body:
        raise Unpackable("is empty")
    import cramjam

    room = bytearray(size)
    try:
        return bytes(memoryview(room)[: unpack(body, room)])
    except cramjam.DecompressionError as error:
        words = _words_of(error)
        raise _too_large() if "whole buffer" in words else Unpackable(words) from None


def _words_of(error: Exception) -> str:
    return str(error).removeprefix("snappy: ").lower()


UNPACKERS: Final[Mapping[str, Callable[[bytes], bytes]]] = MappingProxyType(
    {"gzip": _gzip, "deflate": _deflate, "zstd": _zstd, "snappy": _snappy}
)
