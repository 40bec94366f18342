"""The layout of the change journal: frames, each a list of changes.

    magic 4, length 4, crc 4, msgpack

Numbers are big-endian; the CRC32C covers the length and the msgpack. A frame is valid as a whole or not at all, so
changes that were written together are found together or, torn by a crash, not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack
from google_crc32c import extend, value

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

MAGIC: Final = b"\xf2NJ\x01"  # 0xf2 is in no name of a topic or channel
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
    """Return the sound frame at `position`; None: there is none. Lists of changes, and in changes, become tuples."""
    if len(buffer) - position < FRAME_HEADER:
        return None
    magic, length, checksum = _frame.unpack_from(buffer, position)
    start = position + FRAME_HEADER
    packed = buffer[start : start + length]
    if magic != MAGIC or len(packed) != length or _checksum(packed) != checksum:
        return None
    return JournalFrame(msgpack.unpackb(packed, use_list=False), position, start + length)


def length_of(header: bytes) -> int | None:
    """Return the length of the msgpack behind a frame's header; None: this is not such a header."""
    if len(header) < FRAME_HEADER:
        return None
    magic, length, _ = _frame.unpack_from(header)
    return int(length) if magic == MAGIC else None


def _checksum(packed: bytes) -> int:
    checksum: int = extend(value(_length.pack(len(packed))), packed)
    return checksum
