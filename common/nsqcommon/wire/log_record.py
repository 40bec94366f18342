"""The layout of a record. A topic's log has one record for each batch, and readers of history get the same bytes.

    magic      4   the last byte is the version of this format
    header crc 4   CRC32C of the rest of the header, so that readers can find the next record after damage
    length     4   of key, headers and payload together
    crc        4   CRC32C of key, headers and payload
    sequence   8   of the first message
    id         8   of the first message; ids are consecutive
    timestamp  8   nanoseconds
    delay      8   milliseconds, or 0 if not deferred
    count      4   number of messages
    flags      2   how to read key and payload
    key length 2   of the idempotence key, which comes before the payload
    key, payload   the payload is the batch's own: (size:4, body) * count

    HEADERS    1   flag: the headers of all messages come between key and payload, as length:4, headers * count
    KEYS       2   flag: instead of one key there's one per message, as (length:1, key) * count; length 0 is no key
    COPY       4   flag: the one message is an edited copy, for one channel only (edited_copy.py)

All numbers are big-endian. Within a segment, each record's sequence is where the previous record ended. A flag never
changes the header, the length, the checksums or the count. So you can walk from record to record without knowing the
flags. But if you need the messages, refuse a record with an unknown flag: it's sound, but only a later version can read
it (docs/decisions/0015-messages-that-carry-more.md).
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
COPY: Final = 4
KNOWN_FLAGS: Final = HEADERS | KEYS | COPY

KeyPlace = tuple[bytes, int, int]  # a key, and the first sequence and the number of the messages published with it

_unpack: Final = Struct(">4sIIIQQqQIHH").unpack_from
_unpack_link: Final = Struct(">4s4xI4xQ24xI4x").unpack_from
_AREA_SIZE: Final = 4
_size_prefix: Final = Struct(">I")


class Header(NamedTuple):
    payload_length: int  # includes the key and the headers
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
    """The record is sound, but only a later version knows how to read its messages."""

    def __init__(self, header: Header) -> None:
        super().__init__(
            f"a later version wrote messages {header.base_sequence} to {header.end_sequence - 1}, "
            f"and only such a version can read them (flags {header.unknown_flags:#x})"
        )
        self.first = header.base_sequence
        self.end = header.end_sequence


def decode_header(buffer: bytes, position: int) -> Header | None:
    """Return the header at `position`, or None if there's no valid one."""
    if len(buffer) - position < HEADER_SIZE:
        return None
    magic, header_crc, *fields = _unpack(buffer, position)
    if magic != MAGIC or crc32c(buffer[position + 8 : position + HEADER_SIZE]) != header_crc:
        return None
    header = Header(*fields)
    return header if header.count and header.key_length <= header.payload_length else None


def decode_payload(header: Header, buffer: bytes, position: int) -> bytes | None:
    """Return the payload of the record at `position`, or None if it's incomplete or its checksum is wrong.

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
    """Return the concatenated headers of all messages in the record at `position`. Empty if no message has any.

    The record has to be sound. For a damaged one, the result is undefined.
    """
    if not header.flags & HEADERS:
        return b""
    start = position + HEADER_SIZE
    payload = buffer[start : start + header.payload_length]
    return payload[header.key_length + _AREA_SIZE : _end_of_headers(header, payload)]


def _end_of_headers(header: Header, payload: bytes) -> int:
    """Return where the messages begin after the headers, but never more than the length of the payload."""
    start = header.key_length + _AREA_SIZE
    if start > len(payload):
        return len(payload)
    return min(start + int(_size_prefix.unpack_from(payload, header.key_length)[0]), len(payload))


def decode_keys(header: Header, buffer: bytes, position: int) -> list[bytes]:
    """Return the keys of the sound record at `position`. For a damaged one, the result is undefined."""
    start = position + HEADER_SIZE
    return split_keys(buffer[start : start + header.key_length], header.flags)


def split_keys(place: bytes, flags: int) -> list[bytes]:
    """Return the keys of a record with these flags, whose key field this is."""
    if not flags & KEYS:
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
    """Return the keys of the sound record at `position`, each with the range of its messages."""
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
    """Return the start of each message, plus the end, or None unless the payload is exactly `count` messages."""
    length = len(payload)
    if length < 4 * count or not count:
        return None
    (first,) = _size_prefix.unpack_from(payload)
    size = first + 4
    # Often all messages have the same size. Then each of the four size bytes is the same in every message, which we can
    # check with four slices instead of a walk, and the offsets are a range.
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
    """Return (position, header) of the first valid header from `start` on with a sequence of at least `not_before`.

    Without `not_before`, a message that contains an older record of this log could be mistaken for a record.
    """
    position = buffer.find(MAGIC, start)
    while position >= 0:
        header = decode_header(buffer, position)
        if header is not None and header.base_sequence >= not_before:
            return position, header
        position = buffer.find(MAGIC, position + 1)
    return None


class RecordChain(NamedTuple):
    """The result of `follow`."""

    position: int  # the start of the first record that wasn't accepted
    sequence: int  # the sequence that this record should have
    last: int  # the start of the last accepted record, or -1
    needed: int  # the known size of a record that continues past the buffer, or 0


def follow(buffer: bytes, position: int, sequence: int, until: int) -> RecordChain:
    """Walk from record to record, from the one that starts at `sequence` to the one that holds `until - 1`.

    We trust a record because the next one, with the right sequence, starts where it ends. That's five times as fast as
    verifying checksums, but nothing vouches for the last record: verify it before you use it.
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
