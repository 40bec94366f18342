"""Reads a journal file frame by frame, skipping damage. It never holds the whole file in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from nsqd.log.journal import format as journal_format
from nsqd.log.journal.format import FRAME_HEADER, MAGIC, JournalFrame
from nsqd.log.segment import BLOCK_SIZE, ReadAt

# A change with this name stands for changes that were lost to damage.
LOST: Final = "lost"


class BadBytes(NamedTuple):
    """Bytes that aren't a frame. If no sound frame follows (`is_tail`), they are a write that never finished."""

    position: int
    end: int
    is_tail: bool


def walk_frames(read: ReadAt, size: int) -> Iterator[JournalFrame | BadBytes]:
    position = 0
    while position < size:
        frame = _frame_at(read, position, size)
        if frame is None:
            frame = _find_frame(read, position + 1, size)
            if frame is None:
                yield BadBytes(position, size, is_tail=True)
                return
            yield BadBytes(position, frame.position, is_tail=False)
        yield frame
        position = frame.end


def _frame_at(read: ReadAt, position: int, size: int) -> JournalFrame | None:
    length = journal_format.length_of(read(position, FRAME_HEADER))
    if length is None or position + FRAME_HEADER + length > size:
        return None
    frame = journal_format.decode(read(position, FRAME_HEADER + length), 0)
    return frame and JournalFrame(frame.changes, position, position + frame.end)


def _find_frame(read: ReadAt, start: int, size: int) -> JournalFrame | None:
    """Return the first sound frame at `start` or later, or None."""
    while start < size:
        block = read(start, min(BLOCK_SIZE, size - start))
        place = block.find(MAGIC)
        while place >= 0:
            frame = _frame_at(read, start + place, size)
            if frame is not None:
                return frame
            place = block.find(MAGIC, place + 1)
        start += max(1, len(block) - len(MAGIC) + 1)  # overlap the blocks: a magic number may span two of them
    return None
