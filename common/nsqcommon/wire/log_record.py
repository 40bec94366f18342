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
    flags      2   how key and payload are to be read
    key length 2   of the idempotence key, which precedes the payload
    key, payload   the payload is the batch's own: (size:4, body) * count

    HEADERS    1   a flag: between key and payload stand the headers of all messages, length:4, headers * count
    KEYS       2   a flag: the key's place holds a key for each message, (length:1, key) * count; length 0: no key

All numbers are big-endian. Within a segment each record's sequence is where the previous record ended. A flag never
changes the header, the length, the checksums or the count, so whoever only goes from record to record need not know
it. Whoever needs the messages refuses a record with an unknown flag: it is sound, and a later version can read it
(docs/decisions/0015-messages-that-carry-more.md).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

MAGIC: Final = b"\xf1NS\x01"
HEADER_SIZE: Final = 56
HEADERS: Final = 1
KEYS: Final = 2
KNOWN_FLAGS: Final = HEADERS | KEYS

KeyPlace = tuple[bytes, int, int]  # a key, the first sequence and the count of the messages that it names

_unpack: Final = Struct(">4sIIIQQqQIHH").unpack_from
_unpack_link: Final = Struct(">4s4xI4xQ24xI4x").unpack_from
_AREA_SIZE: Final = 4
_size_prefix: Final = Struct(">I")


class Header(NamedTuple):
    payload_length: int  # includes the key
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
        """The size of the whole record in bytes."""
        return HEADER_SIZE + self.payload_length

    @property
    def end_sequence(self) -> int:
        return self.base_sequence + self.count

    @property
    def unknown_flags(self) -> int:
        return self.flags & ~KNOWN_FLAGS


class UnknownFlags(Exception):
    """The record is sound, but only a later version knows how its messages are to be read."""

    def __init__(self, header: Header) -> None:
        super().__init__(
            f"a later version wrote messages {header.base_sequence} to {header.end_sequence - 1}, "
            f"and only such a version can read them (flags {header.unknown_flags:#x})"
        )
        self.first = header.base_sequence
        self.end = header.end_sequence


def decode_header(buffer: bytes, position: int) -> Header | None:
    """Return the header at `position`, or None if there is no valid one."""
    if len(buffer) - position < HEADER_SIZE:
        return None
    magic, header_crc, *fields = _unpack(buffer, position)
    if magic != MAGIC or crc32c(buffer[position + 8 : position + HEADER_SIZE]) != header_crc:
        return None
    header = Header(*fields)
    return header if header.count and header.key_length <= header.payload_length else None


def decode_payload(header: Header, buffer: bytes, position: int) -> bytes | None:
    """Return the payload of the record that lies wholly in `buffer` at `position`, or None if its checksum is wrong.

    Raises UnknownFlags.
    """
    start = position + HEADER_SIZE
    payload = buffer[start : start + header.payload_length]
    if len(payload) != header.payload_length or crc32c(payload) != header.payload_crc:
        return None
    if header.flags & ~KNOWN_FLAGS:
        raise UnknownFlags(header)
    if header.flags & HEADERS:
        return payload[_end_of_headers(header, payload) :]
    return payload[header.key_length :] if header.key_length else payload


def decode_header_area(header: Header, buffer: bytes, position: int) -> bytes:
    """Return the headers of all messages of the sound record at `position`, one behind the other; empty: none has any.

    Of a damaged record anything may be returned.
    """
    if not header.flags & HEADERS:
        return b""
    start = position + HEADER_SIZE
    payload = buffer[start : start + header.payload_length]
    return payload[header.key_length + _AREA_SIZE : _end_of_headers(header, payload)]


def _end_of_headers(header: Header, payload: bytes) -> int:
    """Return where the messages begin behind the headers; the end of the payload, if the headers go beyond it."""
    start = header.key_length + _AREA_SIZE
    if start > len(payload):
        return len(payload)
    return min(start + int(_size_prefix.unpack_from(payload, header.key_length)[0]), len(payload))


def decode_keys(header: Header, buffer: bytes, position: int) -> list[bytes]:
    """Return the keys of the sound record at `position`. Of a damaged one anything may be returned."""
    start = position + HEADER_SIZE
    place = buffer[start : start + header.key_length]
    if not header.flags & KEYS:
        return [place] if place else []
    keys = []
    at = 0
    while at < len(place):
        end = at + 1 + place[at]
        if end > at + 1:
            keys.append(place[at + 1 : end])
        at = end
    return keys


def decode_keyed(header: Header, buffer: bytes, position: int) -> list[KeyPlace]:
    """Return the keys of the sound record at `position` with their places."""
    start = position + HEADER_SIZE
    place = buffer[start : start + header.key_length]
    if not header.flags & KEYS:
        return [(place, header.base_sequence, header.count)] if place else []
    found = []
    at, sequence = 0, header.base_sequence
    while at < len(place):
        end = at + 1 + place[at]
        if end > at + 1:
            found.append((place[at + 1 : end], sequence, 1))
        at, sequence = end, sequence + 1
    return found


def message_offsets(payload: bytes, count: int) -> Sequence[int] | None:
    """Return where each message starts, and the end; None unless exactly `count` sized messages fill the payload."""
    length = len(payload)
    if length < 4 * count or not count:
        return None
    (first,) = _size_prefix.unpack_from(payload)
    size = first + 4
    # Batches of equal sizes are common. Four slices prove one without a walk, and its offsets are a range.
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
    """Return the first valid header from `start` on whose sequence is at least `not_before`, and its position.

    A message may contain an older record of this log; its sequence keeps it from being taken for a record.
    """
    position = buffer.find(MAGIC, start)
    while position >= 0:
        header = decode_header(buffer, position)
        if header is not None and header.base_sequence >= not_before:
            return position, header
        position = buffer.find(MAGIC, position + 1)
    return None


class RecordChain(NamedTuple):
    """How far `follow` has come."""

    position: int  # where the first record that was not accepted starts
    sequence: int  # that this record should have
    last: int  # where the last accepted record starts; -1: none was accepted
    needed: int  # the known size of a record that continues beyond the buffer; 0: none does


def follow(buffer: bytes, position: int, sequence: int, until: int) -> RecordChain:
    """Walk from record to record, from the one of `sequence` to the one that holds `until` - 1.

    A header is accepted if its sequence is the next one and the next record starts right after it, which costs a fifth
    of verifying its checksum. The last accepted record is therefore still unproven.
    """
    end = len(buffer)
    unpack, magic = _unpack_link, MAGIC
    last = -1
    while sequence < until:
        if end - position < HEADER_SIZE:
            return RecordChain(position, sequence, last, HEADER_SIZE)
        found, length, base, count = unpack(buffer, position)
        if found != magic or base != sequence or not count:
            break
        following = position + HEADER_SIZE + length
        if following > end:
            return RecordChain(position, sequence, last, HEADER_SIZE + length)
        last = position
        position = following
        sequence = base + count
    return RecordChain(position, sequence, last, 0)
