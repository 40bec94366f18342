"""NSQ's snappy: the framing format, in which every chunk is independent and has a checksum.

    chunk      type:1, length:3 (little-endian), then `length` bytes
    ff         stream identifier "sNaPpY", first of all; may be repeated
    00         checksum:4, compressed data
    01         checksum:4, uncompressed data
    02 .. 7f   unknown, an error
    80 .. fe   unknown, skipped (fe is padding)

The checksum is the masked CRC-32C of the uncompressed data, of which a chunk holds at most 64 KiB.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import cramjam
from google_crc32c import value as crc32c

from nsqcommon.streams.layer import StreamError

_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_MOST_PLAIN: Final = 1 << 16
# Decoded bytes per call. Snappy expands data up to about twentyfold, so one read may become megabytes; ordinary data
# stay below this.
_MOST_AT_ONCE: Final = 8 * _MOST_PLAIN
_MOST_COMPRESSED: Final = 32 + _MOST_PLAIN + _MOST_PLAIN // 6  # snappy's limit for compressed _MOST_PLAIN
_HEADER_SIZE: Final = 4
_CRC_SIZE: Final = 4
_COMPRESSED: Final = 0x00
_PLAIN: Final = 0x01
_LAST_UNSKIPPABLE: Final = 0x7F
_STREAM_IDENTIFIER: Final = 0xFF

_checksum: Final = Struct("<I")


class SnappyLayer:
    """Implements `Layer`."""

    def __init__(self) -> None:
        self.has_more = False
        self._greeting = _IDENTIFIER  # sent before the first chunk
        self._identified = False
        self._rest = b""  # the start of a chunk whose end hasn't arrived
        self._to_skip = 0  # bytes of an ignored chunk that haven't arrived

    def encode(self, data: bytes) -> bytes:
        pieces = [self._greeting] if data else []
        for start in range(0, len(data), _MOST_PLAIN):
            pieces += _chunk(data[start : start + _MOST_PLAIN])
        if data:
            self._greeting = b""
        return b"".join(pieces)

    def decode(self, data: bytes) -> bytes:
        buffer = self._rest + data if self._rest else data
        pieces: list[bytes] = []
        made = 0
        position = self._skip(buffer, 0)
        while len(buffer) - position >= _HEADER_SIZE and made < _MOST_AT_ONCE:
            kind = buffer[position]
            size = int.from_bytes(buffer[position + 1 : position + 4], "little")
            self._check(kind, size)
            start = position + _HEADER_SIZE
            if _LAST_UNSKIPPABLE < kind < _STREAM_IDENTIFIER:
                self._to_skip = size
                position = self._skip(buffer, start)
                continue
            if start + size > len(buffer):
                break
            pieces.append(self._open(kind, buffer[start : start + size]))
            made += len(pieces[-1])
            position = start + size
        self.has_more = made >= _MOST_AT_ONCE
        self._rest = buffer[position:]
        return b"".join(pieces)

    def _skip(self, buffer: bytes, position: int) -> int:
        skipped = min(self._to_skip, len(buffer) - position)
        self._to_skip -= skipped
        return position + skipped

    def _check(self, kind: int, size: int) -> None:
        """Check the header of a chunk, so that we don't wait for the rest of an invalid one."""
        if kind == _STREAM_IDENTIFIER:
            if size != len(_IDENTIFIER) - _HEADER_SIZE:
                raise StreamError("snappy: wrong stream identifier")
        elif not self._identified:
            raise StreamError("snappy: no stream identifier at the start")
        elif _PLAIN < kind <= _LAST_UNSKIPPABLE:
            raise StreamError(f"snappy: unknown chunk {kind:#04x}")
        elif kind <= _PLAIN and not _CRC_SIZE <= size <= _CRC_SIZE + _MOST_COMPRESSED:
            raise StreamError(f"snappy: invalid chunk size {size}")

    def _open(self, kind: int, content: bytes) -> bytes:
        if kind == _STREAM_IDENTIFIER:
            if content != _IDENTIFIER[_HEADER_SIZE:]:
                raise StreamError("snappy: wrong stream identifier")
            self._identified = True
            return b""
        data = content[_CRC_SIZE:]
        if kind == _COMPRESSED:
            data = _decompress(data)
        if len(data) > _MOST_PLAIN:
            raise StreamError("snappy: chunk too large")
        if _checksum.unpack_from(content)[0] != _masked(crc32c(data)):
            raise StreamError("snappy: wrong checksum")
        return data


def _chunk(data: bytes) -> tuple[bytes, bytes, bytes]:
    compressed = bytes(cramjam.snappy.compress_raw(data))
    kind = _COMPRESSED
    if len(compressed) >= len(data) - len(data) // 8:  # so small a gain isn't worth the reader's time
        kind, compressed = _PLAIN, data
    size = len(compressed) + _CRC_SIZE
    return bytes((kind,)) + size.to_bytes(3, "little"), _checksum.pack(_masked(crc32c(data))), compressed


def _decompress(data: bytes) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) > _MOST_PLAIN:
            raise StreamError("snappy: chunk too large")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise StreamError(f"snappy: {error}") from error


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
