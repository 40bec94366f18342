"""The layout of a record: one batch as it lies in a topic's log, and as readers of history get it.

    magic      4   the last byte is the version of this format
    header crc 4   CRC32C of the rest of the header, so that a reader finds the next record after damage
    length     4   of key and payload together
    crc        4   CRC32C of key and payload
    sequence   8   of the first message
    id         8   of the first message; ids are consecutive
    timestamp  8   nanoseconds
    delay      8   milliseconds; 0: not deferred
    count      4   messages
    flags      2   none yet
    key length 2   idempotence key, before the payload
    key, payload   the payload is the batch's own: (size:4, body) * count

All numbers are big-endian. Within a segment each record's sequence is where the one before ended. A later version of
the format changes the magic's last byte; a reader that does not know it takes the record for damage and keeps it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

MAGIC: Final = b"\xf1NS\x01"
HEADER_SIZE: Final = 56

_unpack: Final = Struct(">4sIIIQQqQIHH").unpack_from
_unpack_link: Final = Struct(">4s4xI4xQ24xI4x").unpack_from
_size_prefix: Final = Struct(">I")


class Header(NamedTuple):
    payload_length: int  # with the key
    payload_crc: int
    base_sequence: int
    base_id: int
    timestamp: int
    delay_ms: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    flags: int
    key_length: int

    @property
    def size(self) -> int:
        """Of the whole record."""
        return HEADER_SIZE + self.payload_length

    @property
    def end_sequence(self) -> int:
        return self.base_sequence + self.count


def decode_header(buffer: bytes, position: int) -> Header | None:
    """The header at `position`, or None: there is no sound one."""
    if len(buffer) - position < HEADER_SIZE:
        return None
    magic, header_crc, *fields = _unpack(buffer, position)
    if magic != MAGIC or crc32c(buffer[position + 8 : position + HEADER_SIZE]) != header_crc:
        return None
    header = Header(*fields)
    return header if header.count and header.key_length <= header.payload_length else None


def decode_payload(header: Header, buffer: bytes, position: int) -> bytes | None:
    """The payload of the record that lies wholly in `buffer` at `position`, or None if its checksum is wrong."""
    start = position + HEADER_SIZE
    payload = buffer[start : start + header.payload_length]
    if len(payload) != header.payload_length or crc32c(payload) != header.payload_crc:
        return None
    return payload[header.key_length :] if header.key_length else payload


def message_offsets(payload: bytes, count: int) -> Sequence[int] | None:
    """Where each message starts, and the end; None unless exactly `count` sized messages fill the payload."""
    length = len(payload)
    if length < 4 * count or not count:
        return None
    (first,) = _size_prefix.unpack_from(payload)
    size = first + 4
    # Batches of equal sizes are common, and proven by four slices instead of a walk; their offsets are a range.
    if size * count == length and all(payload[i::size] == payload[i : i + 1] * count for i in range(4)):
        return range(0, length + 1, size)
    unpack = _size_prefix.unpack_from
    offsets = array("Q", [0])
    position = 0
    last = length - 4
    for _ in range(count):
        if position > last:
            return None
        position += 4 + unpack(payload, position)[0]
        offsets.append(position)
    return offsets.tolist() if position == length else None


def find_header(buffer: bytes, start: int, *, not_before: int) -> tuple[int, Header] | None:
    """The first sound header from `start` on whose sequence is at least `not_before`.

    The sequence keeps a message that contains an older record of this log from being taken for one.
    """
    position = buffer.find(MAGIC, start)
    while position >= 0:
        header = decode_header(buffer, position)
        if header is not None and header.base_sequence >= not_before:
            return position, header
        position = buffer.find(MAGIC, position + 1)
    return None


class Links(NamedTuple):
    position: int  # where the first record starts that was not taken
    sequence: int  # that it should have
    last: int  # where the last one starts that was taken; -1: there is none
    needed: int  # the size of a record that goes on beyond the buffer, as far as it is known


def follow(buffer: bytes, position: int, sequence: int, until: int) -> Links:
    """Goes from record to record, from the one of `sequence` to the one that holds `until` - 1.

    It believes a header whose sequence is the next one and behind which the next record starts, at a fifth of the cost of
    its checksum. So the last one that was taken is still to be proven.
    """
    end = len(buffer)
    unpack, magic = _unpack_link, MAGIC
    last = -1
    while sequence < until:
        if end - position < HEADER_SIZE:
            return Links(position, sequence, last, HEADER_SIZE)
        found, length, base, count = unpack(buffer, position)
        if found != magic or base != sequence or not count:
            break
        following = position + HEADER_SIZE + length
        if following > end:
            return Links(position, sequence, last, HEADER_SIZE + length)
        last = position
        position = following
        sequence = base + count
    return Links(position, sequence, last, 0)
