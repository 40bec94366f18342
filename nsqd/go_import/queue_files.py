"""The files of Go's disk queues: their names, and which parts of them have unread messages.

    <queue>.diskqueue.000007.dat    records
    <queue>.diskqueue.meta.dat      depth, read position, write position

Go doesn't write the metadata with each message, so it may be older than the records, for example after a kill -9.
That's why we also read records after the write position, in the same file and in later ones. For the same reason,
messages after the read position may have been delivered already, and are then delivered again. Records before the read
position are never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_is_queue_file: Final = re.compile(r"(.+)\.diskqueue\.(meta|\d{6,18})\.dat").fullmatch
_is_position: Final = re.compile(rb"\s*(-?\d{1,19})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\s*").fullmatch


@dataclass(slots=True)
class QueueFiles:
    """The file names of one queue."""

    meta: str | None = None
    data: dict[int, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        return [*self.data.values(), *([self.meta] if self.meta is not None else [])]


def find_queues(names: Iterable[str]) -> dict[str, QueueFiles]:
    """Find the queues among these files, by the queue's name: `topic` or `topic:channel`."""
    queues: dict[str, QueueFiles] = {}
    for name in sorted(names):
        if (match := _is_queue_file(name)) is None:
            continue
        files = queues.setdefault(match[1].replace(";", ":"), QueueFiles())  # Go uses ";" on Windows
        if match[2] == "meta":
            files.meta = name
        else:
            files.data[int(match[2])] = name
    return queues


def queue_name(topic: str, channel: str | None) -> str:
    return topic if channel is None else f"{topic}:{channel}"


class Position(NamedTuple):
    """The content of a queue's metadata."""

    depth: int
    read_file: int
    read_offset: int
    write_file: int
    write_offset: int


def parse_position(data: bytes) -> Position | None:
    match = _is_position(data)
    return Position(*map(int, match.groups())) if match is not None else None


class UnreadPart(NamedTuple):
    """The unread part of a file."""

    number: int
    start: int
    end: int


class ReadingPlan(NamedTuple):
    parts: list[UnreadPart]
    remarks: list[str]


def plan_reading(position: Position | None, sizes: Mapping[int, int]) -> ReadingPlan:
    """Return the parts to read. `sizes` has each file's size by its number. Without a position, read everything."""
    if position is None:
        remarks = ["no readable metadata, importing all records in its files"] if sizes else []
        return ReadingPlan([UnreadPart(number, 0, sizes[number]) for number in sorted(sizes)], remarks)
    read_file, write_file = position.read_file, position.write_file
    parts, remarks = [], []
    for number in sorted(sizes):
        size = sizes[number]
        start = position.read_offset if number == read_file else 0
        if number < read_file:
            remarks.append(f"skipping file {number}, which is before the read position")
            continue
        if number > write_file:
            remarks.append(f"importing file {number}, which is newer than the metadata")
        elif number == write_file and size > position.write_offset:
            remarks.append(f"file {number}: importing {size - position.write_offset} bytes after the write position")
        elif number == write_file and size < position.write_offset:
            remarks.append(f"file {number} ends at {size}, but {position.write_offset} bytes were written")
        if start > size:
            remarks.append(f"file {number} ends at {size}, before the read position {start}")
        elif start < size:
            parts.append(UnreadPart(number, start, size))
    if (missing := _missing(position, sizes)) > 0:
        remarks.append(f"{missing} files are missing from {read_file} to {write_file}")
    return ReadingPlan(parts, remarks)


def _missing(position: Position, sizes: Mapping[int, int]) -> int:
    """Return how many files with unread records are missing. If everything was read, no file has to exist."""
    # Go creates a file with its first record, so a write file with offset 0 doesn't exist yet.
    last = position.write_file if position.write_offset else position.write_file - 1
    if (position.read_file, position.read_offset) == (position.write_file, position.write_offset):
        return 0
    return last - position.read_file + 1 - sum(position.read_file <= number <= last for number in sizes)
