"""Makes the operations and bytes of slots out of recorded changes.

A recorded file keeps its number for as long as it is open. In a chain, a number means nothing outside of its run, so a
file that is still open when a run begins is opened again there, under the name that it has by then. A file that has no
name any more is in no data path, so writes to it are left out.

Writes that follow each other become one, and a write that doesn't fit into a slot is continued in the next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from nsqcommon.remote.operations import Cut, OpenFile, Operation, Remove, Rename, Replace, UseBlob, Write
from nsqcommon.remote.slot import MOST_BODY
from nsqd.remote.recorder import Recorded


@dataclass(slots=True)
class Content:
    """What goes into one slot."""

    operations: list[Operation] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, operation: Operation, data: bytes = b"") -> None:
        last = self.operations[-1] if self.operations else None
        if isinstance(operation, Write) and isinstance(last, Write) and _follows(operation, last):
            self.operations[-1] = Write(last.file, last.offset, last.length + operation.length)
        else:
            self.operations.append(operation)
        if data:
            self.body.append(data)
            self.size += len(data)


class SlotBuilder:
    """Queues changes, and gives them out in pieces of at most `most` bytes."""

    def __init__(self, most: int = MOST_BODY) -> None:
        self.position = 0  # how many changes have been given out as a whole
        self.waiting_bytes = 0  # a change without bytes counts as one
        self.most = most
        self._queue: deque[Recorded] = deque()
        self._paths: dict[int, str] = {}  # of files that are open and have a name
        self._opened: set[int] = set()  # in this run

    def add(self, change: Recorded) -> None:
        self._queue.append(change)
        self.waiting_bytes += len(change.data) or 1

    def begin_run(self) -> None:
        self._opened.clear()

    def next_content(self) -> Content:
        """Return what goes into the next slot; without operations if nothing waits, or nothing that matters."""
        content = Content()
        while self._queue and content.size < self.most:
            change = self._queue.popleft()
            self.waiting_bytes -= len(change.data) or 1
            room = self.most - content.size
            if isinstance(change.operation, Write) and len(change.data) > room:
                change = self._split(change.operation, change.data, room)
            elif len(change.data) > room and content.operations:
                self._put_back(change)
                break
            else:
                self.position += 1
            self._take(change, content)
        return content

    def _split(self, write: Write, data: bytes, room: int) -> Recorded:
        """Return the beginning of a write, and leave the rest for the next slot."""
        rest = Write(write.file, write.offset + room, write.length - room)
        self._put_back(Recorded(rest, data[room:]))
        return Recorded(Write(write.file, write.offset, room), data[:room])

    def _put_back(self, change: Recorded) -> None:
        self._queue.appendleft(change)
        self.waiting_bytes += len(change.data) or 1

    def _take(self, change: Recorded, content: Content) -> None:
        operation = change.operation
        match operation:
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
        content.add(operation, change.data)

    def _forget(self, path: str) -> None:
        for number in self._within(path):
            del self._paths[number]
            self._opened.discard(number)

    def _move(self, source: str, target: str) -> None:
        for number in self._within(source):
            self._paths[number] = target + self._paths[number].removeprefix(source)

    def _within(self, path: str) -> list[int]:
        return [number for number, it in self._paths.items() if it == path or it.startswith(f"{path}/")]


def _follows(write: Write, last: Write) -> bool:
    return write.file == last.file and write.offset == last.offset + last.length
