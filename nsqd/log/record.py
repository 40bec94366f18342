"""Encodes batches as records, decodes them, and walks over records, which is most of the work of recovery.

For the layout see common/nsqcommon/wire/log_record.py. It's there because readers of history get the same bytes.
"""

from __future__ import annotations

from enum import Enum, auto
from struct import Struct
from typing import Final, NamedTuple

from google_crc32c import extend as extend_crc32c
from google_crc32c import value as crc32c

from nsqcommon.wire.headers import header_offsets
from nsqcommon.wire.log_record import (
    COPY,
    HEADER_SIZE,
    HEADERS,
    KEYS,
    MAGIC,
    Header,
    UnknownFlags,
    decode_header,
    decode_header_area,
    decode_payload,
    find_header,
    message_offsets,
)
from nsqd.broker.batch import Batch

__all__ = [
    "HEADER_SIZE",
    "INDEX_INTERVAL",
    "MAGIC",
    "Header",
    "Scan",
    "Stop",
    "UnknownFlags",
    "decode_batch",
    "decode_header",
    "encode",
    "find_header",
    "find_id",
    "message_offsets",
    "scan",
    "size_of",
    "walk_record",
]

INDEX_INTERVAL: Final = 64 * 1024

_pack_checked: Final = Struct(">IIQQqQIHH").pack
_pack_size: Final = Struct(">I").pack
_pack_front: Final = Struct(">4sI").pack
_unpack: Final = Struct(">4sIIIQQqQIHH").unpack_from


def encode(batch: Batch) -> tuple[bytes, bytes]:
    """Return the record as two buffers: first the record's header with key and message headers, then the payload.

    The payload isn't copied, because that would cost more than everything else here.
    """
    payload, key, headers = batch.payload, batch.key, batch.headers
    if not key and not headers:
        lead, flags, length, crc = b"", 0, len(payload), crc32c(payload)
    else:
        lead = key + _pack_size(len(headers)) if headers else key
        flags = batch.flags | (HEADERS if headers else 0)
        length = len(lead) + len(headers) + len(payload)
        crc = extend_crc32c(extend_crc32c(crc32c(lead), headers), payload)
    checked = _pack_checked(
        length,
        crc,
        batch.base_sequence,
        batch.base_id,
        batch.timestamp,
        batch.delay_ms,
        batch.count,
        flags,
        len(key),
    )
    header = _pack_front(MAGIC, crc32c(checked)) + checked
    return b"".join((header, lead, headers)) if lead else header, payload


def size_of(batch: Batch) -> int:
    """Return the size of the batch's record in bytes."""
    headers = 4 + len(batch.headers) if batch.headers else 0
    return HEADER_SIZE + len(batch.key) + headers + len(batch.payload)


def decode_batch(header: Header, buffer: bytes, position: int) -> Batch | None:
    """Decode the whole record in `buffer` at `position`. Returns None if its checksum or layout is wrong.

    Raises UnknownFlags.
    """
    payload = decode_payload(header, buffer, position)
    if payload is None:
        return None
    offsets = message_offsets(payload, header.count)
    if offsets is None:
        return None
    area = decode_header_area(header, buffer, position)
    if area and header_offsets(area, header.count) is None:
        return None
    # Clients can cancel a deferred message by its key, so a copy of the message has to keep the key.
    start = position + HEADER_SIZE
    key = buffer[start : start + header.key_length] if header.delay_ms and not header.flags & KEYS else b""
    return Batch(
        header.base_sequence,
        header.base_id,
        header.timestamp,
        payload,
        offsets,
        header.delay_ms,
        key,
        header.flags & COPY,
        area,
    )


class Stop(Enum):
    """Why a scan stopped."""

    END = auto()  # the end of the buffer
    SHORT = auto()  # the next record continues past the buffer, or it's torn if the file ends there
    GAP = auto()  # there's a sound header, but its sequence is later than expected
    BAD = auto()  # there's no sound record here


class Scan(NamedTuple):
    position: int  # where the scan stopped: the start of the next record
    sequence: int  # the sequence that the next record should have
    stop: Stop
    needed: int  # when SHORT: the size of the next record, or of its header if that isn't complete


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
    """Walk consecutive records from `position`. The first one should start at `sequence`.

    The scan stops before the record that holds `until`. With `verify`, it checks the payloads' checksums too. It adds
    (position, header) of each record to `headers`, and (sequence, position) to `index` once every INDEX_INTERVAL bytes.
    `indexed_at` is the position of the last index entry before this call.

    Recovery spends most of its time in this loop, so it's written for speed. That's why it has 56 for HEADER_SIZE, and
    numbered fields: 2 is the length, 3 the checksum of the payload, 4 the sequence, 8 the count, 10 the key's length.
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


def find_id(buffer: bytes, sequence: int, message_id: int) -> int | None:
    """Walk over the records in the buffer, from `sequence` at its start, and return the sequence of a message.

    Returns None if the walk doesn't reach the message. It may still be elsewhere, or after damage. We verify only the
    header of the record that holds the message, which makes this five times as fast as `scan`.
    """
    position, end = 0, len(buffer) - HEADER_SIZE
    while position <= end:
        fields = _unpack(buffer, position)
        base_id, count = fields[5], fields[8]
        if fields[0] != MAGIC or fields[4] != sequence or base_id > message_id:
            return None
        if message_id < base_id + count:
            return sequence + message_id - base_id if decode_header(buffer, position) is not None else None
        position += HEADER_SIZE + fields[2]
        sequence += count
    return None


def walk_record(buffer: bytes, position: int, *, not_before: int) -> tuple[int, int, int] | None:
    """Return (sequence, count, size) of the record at `position`, or None if there's no whole and sound record."""
    if len(buffer) - position < HEADER_SIZE:
        return None
    fields = _unpack(buffer, position)
    start = position + HEADER_SIZE
    end = start + fields[2]
    if fields[0] != MAGIC or end > len(buffer) or fields[4] < not_before or not fields[8]:
        return None
    if crc32c(buffer[position + 8 : start]) != fields[1] or crc32c(buffer[start:end]) != fields[3]:
        return None
    return fields[4], fields[8], end - position
