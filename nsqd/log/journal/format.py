"""The journal's file format: a sequence of frames, each with a list of changes.

    magic 4, length 4, crc 4, msgpack

Numbers are big-endian, and the CRC32C covers the length and the msgpack. A frame is valid as a whole or not at all. So
if you write changes in one frame, a crash keeps all of them or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack
from google_crc32c import extend, value

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

MAGIC: Final = b"\xf2NJ\x01"  # 0xf2 can't occur in the name of a topic or channel
FRAME_HEADER: Final = 12

_frame: Final = Struct(">4sII")
_length: Final = Struct(">I")


class JournalFrame(NamedTuple):
    changes: tuple[Entry, ...]
    position: int
    end: int


def encode(changes: Iterable[Entry]) -> bytes:
    packed: bytes = msgpack.packb(list(changes))
    return _frame.pack(MAGIC, len(packed), _checksum(packed)) + packed


def decode(buffer: bytes, position: int) -> JournalFrame | None:
    """Return the frame at `position`, or None if there is no sound one. All lists in it become tuples."""
    if len(buffer) - position < FRAME_HEADER:
        return None
    magic, length, checksum = _frame.unpack_from(buffer, position)
    start = position + FRAME_HEADER
    packed = buffer[start : start + length]
    if magic != MAGIC or len(packed) != length or _checksum(packed) != checksum:
        return None
    return JournalFrame(msgpack.unpackb(packed, use_list=False), position, start + length)


def length_of(header: bytes) -> int | None:
    """Return the length of the msgpack after this frame header, or None if it isn't a frame header."""
    if len(header) < FRAME_HEADER:
        return None
    magic, length, _ = _frame.unpack_from(header)
    return int(length) if magic == MAGIC else None


def _checksum(packed: bytes) -> int:
    checksum: int = extend(value(_length.pack(len(packed))), packed)
    return checksum
