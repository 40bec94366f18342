"""A root: every file of a node as of the beginning of a run, and where its bytes are.

    magic | length | CRC32C | header | body        header: ["root", node, run, size of the plain body, its CRC32C]

The body is msgpack, compressed with zstd: the files, and the sealed segments. A file is a path, a size, and
parts that cover it from the first byte to the last. Each part lies in some object, with a checksum of its own.

A root means nothing until the chain says so (`Commit`). An owner that was fenced may leave roots that no chain knows,
with messages in them that were never acknowledged, and without some that were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import cramjam
import msgpack
from google_crc32c import value as crc32c

from nsqcommon.remote.framing import BadObject, frame, unframe
from nsqcommon.remote.names import Run, parse_run

MOST_PLAIN: Final = 256 << 20  # bytes of a body, enough for a million files; a hostile one could ask for much more


@dataclass(frozen=True, slots=True)
class FilePart:
    """A range of an object that is a range of a file. An empty name: zeros."""

    object: str
    offset: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class FileEntry:
    size: int
    parts: tuple[FilePart, ...]


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A finished segment of a topic's log, which has an object of its own."""

    topic: str
    log_id: str
    base: int
    next: int
    object: str
    size: int
    crc: int
    first_ms: int
    last_ms: int
    last_header: bytes  # of its last record, to recognize the same segment on a disk


@dataclass(frozen=True, slots=True)
class Root:
    node: str
    run: Run
    files: Mapping[str, FileEntry]
    sealed: tuple[SealedSegment, ...] = ()

    def objects(self) -> set[str]:
        """Return the names of all objects that this root needs."""
        needed = {part.object for entry in self.files.values() for part in entry.parts if part.object}
        return needed | {segment.object for segment in self.sealed}


def empty_root(node: str, run: Run) -> Root:
    """Return the root of a node's first run, of which there is no object."""
    return Root(node, run, {})


def encode_root(root: Root) -> bytes:
    """Return the object of a root. Raises BadObject if readers would refuse it."""
    files = [
        [path, entry.size, [[it.object, it.offset, it.length, it.crc] for it in entry.parts]]
        for path, entry in sorted(root.files.items())
    ]
    plain: bytes = msgpack.packb([files, [_packed(it) for it in root.sealed]])
    if len(plain) > MOST_PLAIN:
        raise BadObject(f"a root of {len(root.files)} files has {len(plain)} bytes, more than {MOST_PLAIN}")
    header = ["root", root.node, str(root.run), len(plain), crc32c(plain)]
    return frame(header) + bytes(cramjam.zstd.compress(plain))


def decode_root(data: bytes) -> Root:
    """Return a root that was proved: its checksum, and that the parts of each file cover it. Raises BadObject."""
    fields, start = unframe(data)
    match fields[:5]:
        case ["root", str(node), run, int(length), int(crc)] if 0 <= length <= MOST_PLAIN:
            plain = _decompressed(data[start:], length)
            if crc32c(plain) != crc:
                raise BadObject(f"the checksum of the root of {run} is wrong")
            return _root_in(node, parse_run(run), plain)
    raise BadObject(f"{fields[:5]!r} is not the header of a root")


def prove(part: FilePart, data: bytes) -> bytes:
    """Return the bytes of a part. Raises BadObject if they aren't the stored ones."""
    if len(data) != part.length or crc32c(data) != part.crc:
        raise BadObject(f"{part.object} is damaged in [{part.offset}, {part.offset + part.length})")
    return data


def _packed(segment: SealedSegment) -> list[Any]:
    return [
        *(segment.topic, segment.log_id, segment.base, segment.next, segment.object, segment.size, segment.crc),
        *(segment.first_ms, segment.last_ms, segment.last_header),
    ]


def _decompressed(data: bytes, length: int) -> bytes:
    target = bytearray(length)
    try:
        found = cramjam.zstd.decompress_into(data, target) if length else 0
    except (cramjam.DecompressionError, OSError, ValueError) as error:
        raise BadObject(f"cannot decompress: {error}") from error
    if found != length:
        raise BadObject(f"has {found} bytes when decompressed instead of {length}")
    return bytes(target)


def _root_in(node: str, run: Run, plain: bytes) -> Root:
    try:
        found = msgpack.unpackb(plain)
        files, sealed, *_ = found
        entries = {path: _entry(path, size, parts) for path, size, parts, *_ in files}
        return Root(node, run, entries, tuple(_sealed(*it[:10]) for it in sealed))
    except BadObject:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadObject(f"the root of {run} is not as expected: {error}") from error


def _entry(path: object, size: int, found: Iterable[Any]) -> FileEntry:
    parts = tuple(_part(*it[:4]) for it in found)
    covered = sum(it.length for it in parts)
    if not isinstance(path, str) or type(size) is not int or covered != size:
        raise BadObject(f"the parts of {path} cover {covered} bytes of {size}")
    return FileEntry(size, parts)


def _part(*found: Any) -> FilePart:
    part = FilePart(*found)
    numbers = (part.offset, part.length, part.crc)
    if type(part.object) is not str or any(type(it) is not int or it < 0 for it in numbers):
        raise BadObject(f"{found!r} is not a part")
    return part


def _sealed(*found: Any) -> SealedSegment:
    segment = SealedSegment(*found)
    texts, header = (segment.topic, segment.log_id, segment.object), segment.last_header
    numbers = (segment.base, segment.next, segment.size, segment.crc, segment.first_ms, segment.last_ms)
    if not all(isinstance(it, str) for it in texts) or any(type(it) is not int or it < 0 for it in numbers):
        raise BadObject(f"{found!r} is not a sealed segment")
    if not isinstance(header, bytes):
        raise BadObject(f"the last header of {segment.object} is not bytes")
    return segment
