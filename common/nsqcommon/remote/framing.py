"""How each object begins: a magic, and a header of msgpack with its checksum.

    magic 4 | length of the header 4 | CRC32C of the header 4 | header | body

Numbers are big-endian. The header describes the body, and has its CRC32C. So if you need the header only, fetch a few
kilobytes; if you read the body, you can prove it.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import msgpack
from google_crc32c import value as crc32c

MAGIC: Final = b"\xf3\x4e\x52\x01"
_PREFIX: Final = Struct(">4sII")
PREFIX_SIZE: Final = _PREFIX.size
MOST_HEADER: Final = 16 << 20  # bytes; an owner puts half of that into a slot


class BadObject(ValueError):
    """An object is damaged, cut short, or something else. The text says what was found."""


class NewerFormat(BadObject):
    """An object was written by a version that knows more. This version must not touch the chain that has it."""


def frame(fields: list[Any]) -> bytes:
    """Return these fields as the beginning of an object. Raises BadObject if readers would refuse its header."""
    header: bytes = msgpack.packb(fields)
    if len(header) > MOST_HEADER:
        raise BadObject(f"a header of {len(header)} bytes is longer than {MOST_HEADER}")
    return _PREFIX.pack(MAGIC, len(header), crc32c(header)) + header


def unframe(data: bytes | memoryview) -> tuple[list[Any], int]:
    """Return the fields that an object begins with, and where its body begins. Raises BadObject."""
    view = memoryview(data)
    if len(view) < PREFIX_SIZE:
        raise BadObject(f"{len(view)} bytes are too few for an object")
    magic, length, crc = _PREFIX.unpack_from(view)
    if magic[:3] != MAGIC[:3]:
        raise BadObject(f"begins with {magic.hex()} instead of {MAGIC.hex()}")
    if magic != MAGIC:
        raise NewerFormat(f"has format {magic[3]}, this version reads {MAGIC[3]}")
    end = PREFIX_SIZE + length
    if length > MOST_HEADER or len(view) < end:
        raise BadObject(f"has {len(view)} bytes, and a header of {length}")
    header = view[PREFIX_SIZE:end]
    if crc32c(bytes(header)) != crc:
        raise BadObject("the checksum of the header is wrong")
    try:
        fields = msgpack.unpackb(header)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadObject(f"the header is not msgpack: {error}") from error
    if not isinstance(fields, list):
        raise BadObject("the header is not a list")
    return fields, end


def header_of(data: bytes | memoryview) -> bytes:
    """Return the part of an object that distinguishes it from every other: all but its body."""
    return bytes(memoryview(data)[: unframe(data)[1]])
