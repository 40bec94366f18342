"""Reads the messages of one of Go's disk queues. It stands alone so that take_over.py handles messages, not bytes.

An import reads each queue twice, and changes none of its files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.go_import.queue_files import QueueFiles, UnreadPart, parse_position, plan_reading
from nsqd.go_import.records import LENGTH_SIZE, SMALLEST, GoMessage, length_at, split_records

if TYPE_CHECKING:
    from nsqd.log.files import Files

_CHUNK: Final = 1 << 20


class GoQueue:
    """One disk queue.

    Like NSQ, we treat a record longer than `largest` (from --max-msg-size) as garbage, except where `_oversized_length`
    finds it plausible.
    """

    def __init__(self, files: Files, folder: Path, name: str, queue: QueueFiles, *, largest: int) -> None:
        self.name = name
        self.names = queue.names()
        self.damage: dict[str, str] = {}  # by file, from the last reading
        self._files = files
        self._folder = folder
        self._data = queue.data
        self._largest = largest
        position = parse_position(files.read(folder / queue.meta)) if queue.meta is not None else None
        sizes = {number: files.size_of(folder / name) for number, name in queue.data.items()}
        self._parts, self.remarks = plan_reading(position, sizes)
        self._depth = position.depth if position is not None else None

    def depth_remark(self, count: int) -> str | None:
        """Return a remark if the number of messages differs from the metadata, else None."""
        if self._depth is None or self._depth == count:
            return None
        return f"found {count} messages, but the metadata says {self._depth}"

    def chunks(self) -> Iterator[list[GoMessage]]:
        """Yield all messages, in order. If a file has a bad record, skip the rest of the file, as NSQ does."""
        self.damage = {}
        for part in self._parts:
            name = self._data[part.number]
            path = self._folder / name
            descriptor = self._files.open_to_read(path)
            try:
                yield from self._read(name, descriptor, part)
            except OSError as error:  # don't skip the file: the disk may be able to read it later
                raise OSError(error.errno, error.strerror, str(path)) from error
            finally:
                self._files.close(descriptor)

    def _read(self, name: str, descriptor: int, part: UnreadPart) -> Iterator[list[GoMessage]]:
        offset, end = part.start, part.end
        size, largest = _CHUNK, self._largest
        while offset < end:
            data = self._files.read_fully(descriptor, min(size, end - offset), offset)
            messages: list[GoMessage] = []
            found = split_records(data, largest=largest, messages=messages)
            if messages:
                yield messages
            offset += found.position
            size, largest = _CHUNK, self._largest
            if not found.needed:
                length = self._oversized_length(descriptor, offset, end)
                if not length:
                    self.damage[name] = f"no record at {offset}, skipping {end - offset} bytes"
                    return
                size, largest = LENGTH_SIZE + length, length
            elif offset < end < offset + found.needed:
                self.damage[name] = f"torn record at {offset}, skipping {end - offset} bytes"
                return
            else:
                size = max(size, found.needed)

    def _oversized_length(self, descriptor: int, offset: int, end: int) -> int:
        """Return the length of a record that is longer than --max-msg-size, or 0 if it isn't a record.

        It's a record if the file ends right after it, or if another record follows. Such records are normal if
        --max-msg-size was higher in the past.
        """
        if end - offset < LENGTH_SIZE:
            return 0
        length = length_at(self._files.read_fully(descriptor, LENGTH_SIZE, offset), 0)
        following = offset + LENGTH_SIZE + length
        if length <= self._largest or following > end:
            return 0
        if following == end:
            return length
        after = self._files.read_fully(descriptor, LENGTH_SIZE, following)
        return length if len(after) == LENGTH_SIZE and SMALLEST <= length_at(after, 0) <= self._largest else 0
