"""Writes an imported topic's log. It stands alone because it knows nothing of Go: it gets ids, times and bodies.

Each message becomes a batch of its own, and each segment is synced once, at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

from nsqd.broker.batch import Batch
from nsqd.log.record import HEADER_SIZE, INDEX_INTERVAL, encode
from nsqd.log.segment import Segment, SegmentIndex, save_index, segment_name

if TYPE_CHECKING:
    from nsqd.log.files import Files

_pack_size: Final = Struct(">I").pack


class LogWriter:
    def __init__(self, files: Files, folder: Path, *, max_bytes: int) -> None:
        self.tail = 0
        self.bytes = 0
        self.last_segment = (0, 0)  # base and size of the last segment that has ended
        self._files = files
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment: Segment | None = None
        self._descriptor = -1
        self._buffers: list[bytes] = []
        self._end = 0  # size of the segment, including the bytes still in the buffers
        self._indexed_at = 0

    def write(self, messages: Iterable[tuple[int, int, bytes]]) -> None:
        """Write messages, given as (id, timestamp, body)."""
        for number, timestamp, body in messages:
            payload = _pack_size(len(body)) + body
            batch = Batch(self.tail, number, timestamp, payload, (0, len(payload)))
            self._make_room(HEADER_SIZE + len(payload))
            self._buffers += encode(batch)
            self._end += HEADER_SIZE + len(payload)
            self.tail += 1
        self._flush()

    def _make_room(self, size: int) -> None:
        segment = self._segment
        # An empty segment takes any record, even one larger than `max_bytes`.
        if segment is None or (self._end and self._end + size > self._max_bytes):
            self.end_segment()
            path = self._folder / segment_name(self.tail)
            self._segment = Segment(path, self.tail, 0, SegmentIndex())
            self._descriptor = self._files.open_to_write(path)
            self._end = self._indexed_at = 0
        elif self._end - self._indexed_at >= INDEX_INTERVAL and segment.index is not None:
            segment.index.add(self.tail, self._end)
            self._indexed_at = self._end

    def _flush(self) -> None:
        segment, buffers = self._segment, self._buffers
        if segment is not None and buffers:
            data = b"".join(buffers)
            self._files.write_fully(self._descriptor, [data], segment.size)
            segment.size += len(data)
            self.bytes += len(data)
            buffers.clear()

    def end_segment(self) -> None:
        """Finish and sync the current segment."""
        segment = self._segment
        if segment is None or segment.index is None:
            return
        self._flush()
        self.last_segment = (segment.base, segment.size)
        self._files.sync(self._descriptor)
        self.close()
        save_index(self._files, segment.index_path, segment.index.encode_unsaved(), saved=0)
        self._segment = None

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)
