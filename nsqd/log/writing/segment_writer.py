"""Appends records to a log's active segment and its sparse index, and limits how many such files are open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqd.log.files import LARGE, MOST_BUFFERS, close_quietly
from nsqd.log.record import INDEX_INTERVAL, size_of
from nsqd.log.segment import Segment, SegmentIndex, segment_name

if TYPE_CHECKING:
    from pathlib import Path

    from nsqcommon.wakeup import Wakeup
    from nsqd.broker.batch import Batch
    from nsqd.log.files import Files
    from nsqd.log.segment_list import SegmentList


MOST_DESCRIPTORS: Final = 256  # for writing, and as many again for reading


class SegmentWriter:
    """Appends to the active segment of one log, and begins new segments.

    Touches the files in the log's folder, the list of segments, and the active segment's size, index and age. It
    doesn't deal with publishers: the log handles the OSError of a failed write.
    """

    def __init__(
        self, folder: Path, open_writers: OpenWriters, segments: SegmentList, *, remembers_keys: bool = False
    ) -> None:
        """Set up the writer. With `remembers_keys`, it records in each segment when the newest key was written."""
        self._folder = folder
        self._open_writers = open_writers
        self._files = open_writers.files
        self._write_at = open_writers.files.write_at
        self._segments = segments
        self._remembers_keys = remembers_keys
        self._descriptor = -1  # of the active segment, if it is open
        index = segments.active.index if segments.active is not None else None
        self._indexed_at = index.offsets[-1] if index else 0
        self._used = False  # since the last `take_used`

    def write(self, segment: Segment, batches: list[Batch], buffers: list[bytes], size: int) -> None:
        """Append batches to the segment. `buffers` has their records, `size` bytes in all. Raises OSError.

        This takes one system call, unless there are too many buffers or bytes. We update the segment's size, index and
        age only after the whole write. So after a failed write the segment is unchanged, although its file may have
        some of the bytes. `cut_back` removes them.
        """
        descriptor = self._descriptor
        if descriptor < 0:
            descriptor = self._open(segment)
        offset = segment.size
        if size > LARGE:
            self._files.write_in_pieces(descriptor, buffers, offset)
        elif len(buffers) > MOST_BUFFERS or self._write_at(descriptor, buffers, offset) != size:
            self._files.write_fully(descriptor, buffers, offset)  # after a short write, write everything again
        end, last = offset + size, batches[-1]
        if end - self._indexed_at > INDEX_INTERVAL:
            self._add_to_index(segment, batches)
        segment.size = end
        self._segments.tail = last.end_sequence
        if last.timestamp > segment.newest:
            segment.newest = last.timestamp
        if self._remembers_keys:
            for batch in batches:
                if batch.key and last.timestamp > segment.keyed:
                    segment.keyed = last.timestamp
        self._used = True

    def _add_to_index(self, segment: Segment, batches: list[Batch]) -> None:
        index = segment.index
        if index is None:
            index = segment.index = SegmentIndex()
        position = segment.size
        for batch in batches:
            if position - self._indexed_at >= INDEX_INTERVAL:
                index.add(batch.base_sequence, position)
                self._indexed_at = position
            position += size_of(batch)

    def _open(self, segment: Segment) -> int:
        self._descriptor = self._files.open_to_write(segment.path)
        self._open_writers.file_opened(self)
        return self._descriptor

    def roll(self, base: int) -> None:
        """Begin a new segment and make it the active one. Raises OSError."""
        path = self._folder / segment_name(base)
        descriptor = self._files.open_to_write(path)
        if self._segments.active is not None:
            self.close()
        self._segments.add(Segment(path, base, 0, SegmentIndex()))
        self._descriptor = descriptor
        self._open_writers.file_opened(self)
        self._indexed_at = 0

    def cut_back(self) -> None:
        """Cut off the bytes that a failed write has left after the segment's end. If that fails too, do nothing."""
        if self._descriptor >= 0 and self._segments.active is not None:
            try:
                self._files.truncate(self._descriptor, self._segments.active.size)
            except OSError:  # we truncate the file again before the next append
                pass

    def take_used(self) -> bool:
        """Return whether the file was written to since the last call."""
        used, self._used = self._used, False
        return used

    def close(self) -> None:
        """Close the file. The next write opens it again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close_quietly(self._files, descriptor)


class OpenWriters:
    """The writers that have their file open: at most `MOST_DESCRIPTORS`. Idle ones are closed after a while.

    Touches only these writers, and the wake-up of the task that closes idle ones.
    """

    def __init__(self, files: Files, wakeup: Wakeup) -> None:
        self.files = files
        self._wakeup = wakeup
        self._open: dict[SegmentWriter, None] = {}  # in the order in which they were opened

    def file_opened(self, writer: SegmentWriter) -> None:
        """Add a writer that has opened its file. If that makes too many, close the one opened longest ago."""
        if not self._open:
            self._wakeup.set()
        self._open[writer] = None
        if len(self._open) > MOST_DESCRIPTORS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.close()

    def forget(self, writer: SegmentWriter) -> None:
        self._open.pop(writer, None)

    def close_idle(self) -> bool:
        """Close the files that weren't written to since the last call. Return whether none is left open."""
        for writer in [candidate for candidate in self._open if not candidate.take_used()]:
            writer.close()
            del self._open[writer]
        return not self._open
