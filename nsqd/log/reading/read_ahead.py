"""Reading ahead of a consumer that goes through a backlog, so that nobody waits for the disk."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.log.files import close_quietly

if TYPE_CHECKING:
    from nsqd.log.files import Files
    from nsqd.log.segment import Hole, Segment

AHEAD_BYTES: Final = 2 * 1024 * 1024  # a few thousand messages, so that waking a thread costs little for each
MOST_STREAMS: Final = 8  # channels of a topic that go through their backlogs at the same time


class ReadAhead:
    """Has a thread read what the loop will want next, so that the loop finds it in the page cache.

    The bytes are thrown away, but copying them has a purpose. In a virtual machine, the first touch of a page that was
    free for long may cost as much as everything else that is done for a message. This way the thread pays for it, not
    the loop.
    """

    def __init__(self, topic: str, segment: Segment, offset: int, size: int) -> None:
        self.topic = topic
        self.segment = segment
        self.holes: list[Hole] = []
        self.aside: list[Path] = []
        self.error: OSError | None = None
        self.bypassed: tuple[int, int] | None = None
        self.is_put_off = False
        self._offset = offset
        self._size = size

    def perform(self, files: Files) -> None:
        with suppress(OSError):  # a reader that wants these bytes will meet the error
            descriptor = files.open_to_read(self.segment.path)
            try:
                files.read_at(descriptor, self._size, self._offset)
            finally:
                close_quietly(files, descriptor)


class SequentialReaders:
    """The readers that go through a segment in order, and how far was read ahead for each."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: list[tuple[int, int]] = []  # (base of the segment, offset), the last used at the end

    def __len__(self) -> int:
        return len(self._streams)

    def next_piece(self, segment: Segment, offset: int) -> tuple[int, int] | None:
        """Return (offset, size) of what to read ahead for a reader that goes on at `offset`; None: enough was read.

        The last bytes of a segment are left out: what was appended a moment ago is in the page cache anyway.
        """
        stream = self._stream_at(segment.base, offset)
        start = offset
        if stream is not None:
            if stream[1] > offset + AHEAD_BYTES:
                return None
            start = max(start, stream[1])
        if start + AHEAD_BYTES > segment.size:
            return None
        if stream is not None:
            self._streams.remove(stream)
        self._streams.append((segment.base, start + AHEAD_BYTES))
        del self._streams[:-MOST_STREAMS]
        return start, AHEAD_BYTES

    def _stream_at(self, base: int, offset: int) -> tuple[int, int] | None:
        for stream in self._streams:
            if stream[0] == base and offset - AHEAD_BYTES <= stream[1] <= offset + 2 * AHEAD_BYTES:
                return stream
        return None
