"""Reading what a log no longer has in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqd.log.reading.cold import Load
from nsqd.log.reading.cold_reader import ColdReader
from nsqd.log.reading.compacted import Compacted, CompactedLoad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqd.broker.batch import Batch
    from nsqd.log.log_state import LogState
    from nsqd.log.reading.cold import AnyLoad
    from nsqd.log.reading.cold_reader import ReadingHost
    from nsqd.log.reading.refusals import ReadRefusals
    from nsqd.log.segment_list import SegmentList


class LogReader:
    """Reads from segments, and from side files what lies before the first segment.

    May touch its two readers, and of the segments only what reading has taught about their indexes. It writes nothing.
    """

    def __init__(self, topic: str, host: ReadingHost, segments: SegmentList, state: LogState) -> None:
        self.cold = ColdReader(topic, host, segments, holes=state.holes)
        self.compacted = Compacted(topic, host, state.compacted)
        self._segments = segments

    def batch_at(self, sequence: int) -> Batch | None:
        """Return the batch if it can be had without waiting; None: a thread has been asked to read it."""
        if sequence < self._segments.first:
            return self.compacted.batch_at(sequence)
        return self.cold.batch_at(sequence)

    def next_readable(self, sequence: int) -> int:
        first = self._segments.first
        if sequence < first:
            if self.compacted and self.compacted.holds(sequence):
                return sequence
            sequence = first
        return self.cold.next_readable(sequence)

    def end_of_refused(self, sequence: int) -> int:
        return self._refusals_at(sequence).end_of(sequence)

    def _refusals_at(self, sequence: int) -> ReadRefusals:
        return self.cold.refusals if sequence >= self._segments.first else self.compacted.refusals

    @property
    def refused(self) -> int:
        """How many reads are being tried again because the disk refuses them."""
        return len(self.cold.refusals) + len(self.compacted.refusals)

    def loaded(self, load: AnyLoad) -> None:
        """Take what a thread has read."""
        if isinstance(load, CompactedLoad):
            self.compacted.loaded(load)
        elif isinstance(load, Load):
            self.cold.loaded(load)

    def compacted_messages(self) -> Iterator[tuple[int, int, int]]:
        """Yield (sequence, count, due) of the messages that are in side files only.

        `due` is in milliseconds of the wall clock; 0: at once. Blocks on the disk.
        """
        for header in self.compacted.headers():
            if header.base_sequence < self._segments.first:
                due = header.timestamp // 1_000_000 + header.delay_ms + 1 if header.delay_ms else 0
                yield header.base_sequence, header.count, due
