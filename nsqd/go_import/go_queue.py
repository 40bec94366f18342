"""Reads one of Go's disk queues from its files, as far as they are readable, without changing them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.go_import.queue_files import FilePart, QueueFiles, parse_position, what_to_read
from nsqd.go_import.records import LENGTH_SIZE, SMALLEST, GoMessage, cut, length_at

if TYPE_CHECKING:
    from nsqd.log.files import Files

_CHUNK: Final = 1 << 20


class GoQueue:
    """One disk queue. As in NSQ, `largest` (from --max-msg-size) is the longest record considered plausible."""

    def __init__(self, files: Files, folder: Path, name: str, queue: QueueFiles, *, largest: int) -> None:
        self.name = name
        self.names = queue.names()
        self.damage: dict[str, str] = {}  # found by the last reading, by file
        self._files = files
        self._folder = folder
        self._data = queue.data
        self._largest = largest
        position = parse_position(files.read(folder / queue.meta)) if queue.meta is not None else None
        sizes = {number: files.size_of(folder / name) for number, name in queue.data.items()}
        self._stretches, self.remarks = what_to_read(position, sizes)
        self._depth = position.depth if position is not None else None

    def depth_remark(self, count: int) -> str | None:
        """Return a remark if the messages found are more or fewer than the metadata says, else None."""
        if self._depth is None or self._depth == count:
            return None
        return f"{count} messages were found where the metadata says {self._depth}"

    def chunks(self) -> Iterator[list[GoMessage]]:
        """Yield all messages, in order. After bytes that are no record, the rest of the file is lost, as in NSQ."""
        self.damage = {}
        for stretch in self._stretches:
            name = self._data[stretch.number]
            path = self._folder / name
            descriptor = self._files.open_to_read(path)
            try:
                yield from self._read(name, descriptor, stretch)
            except OSError as error:  # never skipped: the disk may return it another day
                raise OSError(error.errno, error.strerror, str(path)) from error
            finally:
                self._files.close(descriptor)

    def _read(self, name: str, descriptor: int, stretch: FilePart) -> Iterator[list[GoMessage]]:
        offset, end = stretch.start, stretch.end
        size, largest = _CHUNK, self._largest
        while offset < end:
            data = self._files.read_fully(descriptor, min(size, end - offset), offset)
            messages: list[GoMessage] = []
            found = cut(data, largest=largest, messages=messages)
            if messages:
                yield messages
            offset += found.position
            size, largest = _CHUNK, self._largest
            if not found.needed:
                length = self._big_one(descriptor, offset, end)
                if not length:
                    self.damage[name] = f"no record at {offset}: {end - offset} bytes are not taken"
                    return
                size, largest = LENGTH_SIZE + length, length
            elif offset < end < offset + found.needed:
                self.damage[name] = f"torn record at {offset}: {end - offset} bytes are not taken"
                return
            else:
                size = max(size, found.needed)

    def _big_one(self, descriptor: int, offset: int, end: int) -> int:
        """Return the length of a whole record that exceeds --max-msg-size, which may have been higher once, or 0.

        The record is accepted if the file ends with it, or another record begins behind it.
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
