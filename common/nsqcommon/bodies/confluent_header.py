"""The header of Confluent's wire format: a zero byte and the schema's number, then in Protobuf's case indexes."""

from __future__ import annotations

from typing import Final

from nsqcommon.bodies.parsing import Cause, Unfit

HEADER_SIZE: Final = 5  # bytes
_LONGEST_VARINT: Final = 10
_MOST_INDEXES: Final = 100  # one for each level of nested message types


def schema_number(body: bytes) -> int:
    """Return the number in the header. Raises Unfit."""
    if len(body) < HEADER_SIZE or body[0]:
        begins = f"begins with 0x{body[0]:02x}" if body and body[0] else f"has only {len(body)} bytes"
        raise Unfit(Cause.NOT_CONFLUENT, f"the body {begins}")
    return int.from_bytes(body[1:HEADER_SIZE], "big")


def without_indexes(body: bytes) -> bytes:
    """Strip the message indexes, which say which message of its file a Protobuf body has.

    They are a count and as many numbers; a count of zero is short for the list [0]. Raises Unfit.
    """
    count, place = _varint(body, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise Unfit(Cause.NOT_CONFLUENT, "the list of Protobuf's message indexes is broken")
    for _ in range(count):
        _, place = _varint(body, place)
    return body[place:]


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """Return the zigzag number at this position, and the position after it."""
    number = 0
    for taken, byte in enumerate(body[place : place + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << 7 * taken
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place + taken + 1
    raise Unfit(Cause.NOT_CONFLUENT, "the list of Protobuf's message indexes is broken")
