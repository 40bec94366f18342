"""The layout of a record: one batch on disk.

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
from enum import Enum, auto
from struct import Struct
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from nsqd.broker.batch import Batch

MAGIC: Final = b"\xf1NS\x01"
HEADER_SIZE: Final = 56
INDEX_INTERVAL: Final = 64 * 1024

_pack_checked: Final = Struct(">IIQQqQIHH").pack
_pack_front: Final = Struct(">4sI").pack
_unpack: Final = Struct(">4sIIIQQqQIHH").unpack_from
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


def encode(batch: Batch, key: bytes = b"") -> tuple[bytes, ...]:
    """The buffers that written one after the other are the record."""
    payload = batch.payload
    if key:
        keyed = key + payload
        return encode_header(batch, keyed, len(key)), keyed
    return encode_header(batch, payload, 0), payload


def encode_header(batch: Batch, payload: bytes, key_length: int = 0) -> bytes:
    checked = _pack_checked(
        len(payload),
        crc32c(payload),
        batch.base_sequence,
        batch.base_id,
        batch.timestamp,
        batch.delay_ms,
        batch.count,
        0,
        key_length,
    )
    return _pack_front(MAGIC, crc32c(checked)) + checked


def decode_header(buffer: bytes, position: int) -> Header | None:
    """The header at `position`, or None: there is no sound one."""
    if len(buffer) - position < HEADER_SIZE:
        return None
    magic, header_crc, *fields = _unpack(buffer, position)
    if magic != MAGIC or crc32c(buffer[position + 8 : position + HEADER_SIZE]) != header_crc:
        return None
    header = Header(*fields)
    return header if header.count and header.key_length <= header.payload_length else None


def decode_batch(header: Header, buffer: bytes, position: int) -> Batch | None:
    """The batch whose record lies wholly in `buffer` at `position`, or None if its checksum or layout is wrong."""
    start = position + HEADER_SIZE
    payload = buffer[start : start + header.payload_length]
    if len(payload) != header.payload_length or crc32c(payload) != header.payload_crc:
        return None
    if header.key_length:
        payload = payload[header.key_length :]
    offsets = message_offsets(payload, header.count)
    if offsets is None:
        return None
    return Batch(header.base_sequence, header.base_id, header.timestamp, payload, offsets, header.delay_ms)


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


class Stop(Enum):
    """Why a scan went no further."""

    END = auto()  # nothing is left in the buffer
    SHORT = auto()  # the next record goes on beyond the buffer; or it is torn, if the file ends there
    GAP = auto()  # a sound header, but of a later sequence
    BAD = auto()  # no sound record here


class Scan(NamedTuple):
    position: int  # where the first record that was not taken starts
    sequence: int  # that it should have
    stop: Stop
    needed: int  # when SHORT: the size of the record, as far as it is known


def scan(
    buffer: bytes,
    position: int,
    sequence: int,
    *,
    verify: bool,
    until: int | None = None,
    headers: list[tuple[int, Header]] | None = None,
    index: list[tuple[int, int]] | None = None,
    indexed_at: int = 0,
) -> Scan:
    """Walks records that follow each other from `position`, the first of which should start at `sequence`.

    Ends before the record that holds `until`. `verify` checks the payloads' checksums too. On the way it fills
    `headers` with (position, header), and `index` with (sequence, position) once every INDEX_INTERVAL, the last of
    which was at `indexed_at`. This loop is what recovery consists of, so it is written for speed.
    """
    end = len(buffer)
    unpack, crc, magic = _unpack, crc32c, MAGIC
    while position < end:
        if until is not None and sequence >= until:
            break
        if end - position < HEADER_SIZE:
            return Scan(position, sequence, Stop.SHORT, HEADER_SIZE)
        fields = unpack(buffer, position)
        if fields[0] != magic or crc(buffer[position + 8 : position + 56]) != fields[1]:
            return Scan(position, sequence, Stop.BAD, 0)
        base, count = fields[4], fields[8]
        if base != sequence or not count or fields[10] > fields[2]:
            return Scan(position, sequence, Stop.GAP if base > sequence and count else Stop.BAD, 0)
        following = position + 56 + fields[2]
        if until is not None and base + count > until:
            break
        if following > end:
            return Scan(position, sequence, Stop.SHORT, 56 + fields[2])
        if verify and crc(buffer[position + 56 : following]) != fields[3]:
            return Scan(position, sequence, Stop.BAD, 0)
        if headers is not None:
            headers.append((position, Header(*fields[2:])))
        if index is not None and position - indexed_at >= INDEX_INTERVAL:
            index.append((sequence, position))
            indexed_at = position
        position = following
        sequence = base + count
    return Scan(position, sequence, Stop.END, 0)


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
