"""Makes the operations and bytes of slots out of recorded changes.

A recorded file keeps its number for as long as it is open. In a chain, a number means nothing outside of its run, so a
file that is still open when a run begins is opened again there, under the name that it has by then. A file that has no
name any more is in no data path, so writes to it are left out.

Writes that follow each other become one, and a write that doesn't fit into a slot is continued in the next.

An operation takes memory as well, and a small write more than its data. So it counts, both while it waits and in a slot,
which has at most 8 MiB of both. And if the header of a slot had too many bytes, readers would refuse it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from google_crc32c import extend as extend_crc32c

from nsqcommon.remote.checksums import joined_crc
from nsqcommon.remote.framing import MOST_HEADER
from nsqcommon.remote.operations import (
    Cut,
    OpenFile,
    Operation,
    Remove,
    Rename,
    Replace,
    UseBlob,
    Write,
    body_length,
    header_length,
)
from nsqcommon.remote.slot import MOST_BODY
from nsqd.remote.recorder import Closed, Recorded, join_small

MOST_OPERATIONS: Final = MOST_HEADER // 2  # bytes of a header
OBJECTS: Final = 250  # bytes of the objects that a change consists of, apart from its data and path
_WORTH_JOINING: Final = 512 * 1024  # bytes for each checksum, which takes a tenth of a millisecond


@dataclass(slots=True)
class Content:
    """What goes into one slot."""

    operations: list[Operation] = field(default_factory=list)
    crcs: list[int] = field(default_factory=list)  # of the bytes of each operation
    body: list[bytes] = field(default_factory=list)
    size: int = 0
    header: int = 0  # bytes that the operations take at most

    def add(self, operation: Operation, data: bytes = b"", rest: Sequence[bytes] = ()) -> None:
        last = self.operations[-1] if self.operations else None
        if isinstance(operation, Write) and isinstance(last, Write) and _follows(operation, last):
            self.operations[-1] = Write(last.file, last.offset, last.length + operation.length)
        else:
            self.operations.append(operation)
            self.header += header_length(operation)
            self.crcs.append(0)
        if data:
            crc = extend_crc32c(self.crcs[-1], data)
            for buffer in rest:
                crc = extend_crc32c(crc, buffer)
                self.size += len(buffer)
            self.crcs[-1] = crc
            self.size += len(data)
            self.body.append(data)
            self.body += rest

    def has_room(self, most: int) -> bool:
        """Return whether a slot with at most this many bytes of data may have another operation."""
        memory = self.size + OBJECTS * len(self.operations)
        return self.size < most and self.header < MOST_OPERATIONS and memory < MOST_BODY

    def crc(self) -> int | None:
        """Return the checksum of the body. None: reading the body again is quicker than joining that many checksums."""
        pieces = [(crc, body_length(it)) for it, crc in zip(self.operations, self.crcs, strict=True)]
        first, *others = [it for it in pieces if it[1]] or [(0, 0)]
        if len(others) * _WORTH_JOINING > self.size:
            return None
        found, _ = first
        for crc, length in others:
            found = joined_crc(found, crc, length)
        return found

    def buffers(self) -> list[bytes]:
        """Return the body in buffers that a store likes."""
        return join_small(self.body)


class SlotBuilder:
    """Queues changes, and gives them out in pieces of at most `most` bytes."""

    def __init__(self, most: int = MOST_BODY) -> None:
        self.position = 0  # how many changes have been given out as a whole
        self.waiting_bytes = 0  # see `size_of`
        self.most = most
        self._queue: deque[Recorded] = deque()
        self._paths: dict[int, str] = {}  # of files that are open and have a name
        self._opened: set[int] = set()  # in this run

    def add(self, change: Recorded) -> None:
        self._queue.append(change)
        self.waiting_bytes += size_of(change)

    @property
    def waiting_memory(self) -> int:
        return self.waiting_bytes + OBJECTS * len(self._queue)

    @property
    def open_files(self) -> int:
        return len(self._paths)

    @property
    def waiting(self) -> int:
        """How many changes haven't been given out as a whole."""
        return len(self._queue)

    def begin_run(self) -> None:
        self._opened.clear()

    def next_content(self) -> Content:
        """Return what goes into the next slot; without operations if nothing waits, or nothing that matters."""
        content = Content()
        while self._queue and content.has_room(self.most):
            change = self._queue.popleft()
            self.waiting_bytes -= size_of(change)
            room = self.most - content.size
            operation = change.operation
            if isinstance(operation, Write) and operation.length > room:
                change = self._split(operation, (change.data, *change.rest), room)
            elif len(change.data) > room and content.operations:
                self._put_back(change)
                break
            else:
                self.position += 1
            self._take(change, content)
        return content

    def _split(self, write: Write, buffers: Sequence[bytes], room: int) -> Recorded:
        """Return the beginning of a write, and leave the rest for the next slot."""
        begun, left = _divide(buffers, room)
        self._put_back(Recorded(Write(write.file, write.offset + room, write.length - room), left[0], left[1:]))
        return Recorded(Write(write.file, write.offset, room), begun[0], begun[1:])

    def _put_back(self, change: Recorded) -> None:
        self._queue.appendleft(change)
        self.waiting_bytes += size_of(change)

    def _take(self, change: Recorded, content: Content) -> None:
        operation = change.operation
        match operation:
            case Closed(number):
                self._paths.pop(number, None)
                self._opened.discard(number)
                return
            case OpenFile(number, path):
                self._paths[number] = path
                self._opened.add(number)
            case Write(number) | Cut(number):
                if number not in self._paths:
                    return
                if number not in self._opened:
                    content.add(OpenFile(number, self._paths[number]))
                    self._opened.add(number)
            case Rename(source, target):
                self._forget(target)
                self._move(source, target)
            case Remove(path) | Replace(path) | UseBlob(path):
                self._forget(path)
        content.add(operation, change.data, change.rest)

    def _forget(self, path: str) -> None:
        for number in self._within(path):
            del self._paths[number]
            self._opened.discard(number)

    def _move(self, source: str, target: str) -> None:
        for number in self._within(source):
            self._paths[number] = target + self._paths[number].removeprefix(source)

    def _within(self, path: str) -> list[int]:
        return [number for number, it in self._paths.items() if it == path or it.startswith(f"{path}/")]


def size_of(change: Recorded) -> int:
    """Return how many bytes a change adds to a slot at most; at least 1, so that there are some if anything waits."""
    operation = change.operation
    if isinstance(operation, Write) and operation.length:
        return operation.length
    return 1 if isinstance(operation, Closed) else change.size or header_length(operation)


def _divide(buffers: Sequence[bytes], size: int) -> tuple[list[bytes], list[bytes]]:
    """Return the first `size` bytes, and the others. Both are at least one."""
    begun: list[bytes] = []
    for number, buffer in enumerate(buffers):
        if len(buffer) >= size:
            left = [buffer[size:], *buffers[number + 1 :]]
            return [*begun, buffer[:size]], left if left[0] else left[1:]
        begun.append(buffer)
        size -= len(buffer)
    raise AssertionError("there are fewer bytes")


def _follows(write: Write, last: Write) -> bool:
    return write.file == last.file and write.offset == last.offset + last.length
