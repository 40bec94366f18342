"""Records as a version after this one may write them."""

from __future__ import annotations

from pathlib import Path

from google_crc32c import value as crc32c

from nsqcommon.wire.log_record import HEADER_SIZE, decode_header


def with_flags(record: bytes, flags: int) -> bytes:
    """Return the record as a later version may write it."""
    header = record[8:52] + flags.to_bytes(2, "big") + record[54:HEADER_SIZE]
    checksum: int = crc32c(header)
    return record[:4] + checksum.to_bytes(4, "big") + header + record[HEADER_SIZE:]


def write_later(file: Path, *sequences: int, flags: int = 0x8000) -> None:
    """Give the records of these messages a flag that this version does not know."""
    data, written, position = file.read_bytes(), b"", 0
    while (header := decode_header(data, position)) is not None:
        record = data[position : position + header.size]
        has_flag = any(header.base_sequence <= it < header.end_sequence for it in sequences)
        written += with_flags(record, flags) if has_flag else record
        position += header.size
    file.write_bytes(written + data[position:])
