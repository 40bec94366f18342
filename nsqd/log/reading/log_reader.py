"""Finds and reads the messages of a log that are no longer in memory.

    before the first segment   it's in a compacted file, which we read in the same way (compacted.py)
    in a hole                  it's lost, because its bytes are damaged
    in a block                 it's decoded already, because we read it along with others
    in the page cache          we read it right away (cold.py)
    on the disk                a thread reads it (reads.py), and then the channel asks again
    refused by the disk        after a while, channels bypass it and we keep trying (refusals.py)

The newest messages are in memory. `DiskLog.batch_at` looks there first.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsqd.log.reading.cold import (
    NO_CACHED_READS,
    ColdBlock,
    ColdBlocks,
    Damaged,
    Load,
    ReadAhead,
    SequentialReaders,
    Start,
    read_block,
)
from nsqd.log.reading.compacted import Compacted, CompactedLoad
from nsqd.log.reading.refusals import ReadRefusals, opened_to_read
from nsqd.log.record import HEADER_SIZE, Header, UnknownFlags, decode_header
from nsqd.log.segment import Hole, ReadAt, Segment, SegmentWalk

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.log.reading.cold import AnyLoad
    from nsqd.log.reading.compacted import CompactedFile
    from nsqd.log.reading.reads import Reads
    from nsqd.log.segment_list import SegmentList


class LogReader:
    """Reads batches of one log: from its segments, or from compacted files if they're before the first segment.

    Touches only its blocks and holes, and the segments' indexes in memory, which it loads, corrects and drops.
    """

    def __init__(
        self,
        topic: str,
        reads: Reads,
        segments: SegmentList,
        *,
        holes: list[Hole],
        compacted: list[CompactedFile],
    ) -> None:
        self.compacted = Compacted(topic, reads, compacted)
        self.refusals = ReadRefusals(reads.now)  # for segments; `compacted` has its own
        self._topic = topic
        self._reads = reads
        self._segments = segments
        self.holes = sorted([(hole.first, hole.end) for hole in holes])  # sequences that are lost
        self._behind_holes: dict[int, tuple[int, int]] = {}  # end of a hole -> segment's base, offset
        self._blocks: ColdBlocks | None = None
        self._streams = SequentialReaders()
        self._loading: dict[int, None] = {}  # a dict, because an empty set takes 150 bytes more

    def next_readable(self, sequence: int) -> int:
        """Return `sequence` if it still exists, otherwise the next sequence that does."""
        first = self._segments.first
        if sequence < first:
            if self.compacted and self.compacted.holds(sequence):
                return sequence
            sequence = first
        for start, end in self.holes:
            if start <= sequence < end:
                sequence = end
        return sequence

    def next_kept(self, sequence: int) -> int:
        """Do the same as `next_readable`, but the next sequence may also be one that a compacted file has."""
        first = self._segments.first
        if sequence < first and self.compacted:
            found = self.compacted.next_held(sequence)
            if found is not None and found < first:
                return found
        return self.next_readable(sequence)

    def batch_at(self, sequence: int) -> Batch | None:
        """Return the batch if that doesn't block. Otherwise have a thread read it, and return None."""
        if sequence < self._segments.first:
            return self.compacted.batch_at(sequence)
        segment = self._segments.holding(sequence)
        start: Start | None = None
        try:
            block = self._opened_blocks().find(sequence)
            if block is None:
                start = self._start_of(sequence, segment)
                block = self._read_cached(segment, start, sequence) if start is not None else None
            if block is not None:
                return block.batch_at(sequence)
        except Damaged as damage:
            start = Start(damage.sequence, damage.offset)
        except (BlockingIOError, UnknownFlags):
            pass  # in the second case, a thread will find the same record and report it
        except OSError as error:  # a thread will get the same error, and report it
            if error.errno in NO_CACHED_READS:
                self._reads.reads_cache = False
        if self.refusals.end_of(sequence) == sequence:
            self._load(sequence, segment, start)
        return None

    def end_of_refused(self, sequence: int) -> int:
        refusals = self.refusals if sequence >= self._segments.first else self.compacted.refusals
        return refusals.end_of(sequence)

    @property
    def refused(self) -> int:
        """How many reads we're retrying because the disk refuses them."""
        return len(self.refusals) + len(self.compacted.refusals)

    def ask_again(self) -> None:
        """Retry the oldest read that the disk keeps refusing, even if no channel is waiting for it now."""
        if (sequence := self.refusals.oldest_stretch) is not None:
            self._load(sequence, self._segments.holding(sequence), None)

    def _load(self, sequence: int, segment: Segment, start: Start | None) -> None:
        if sequence not in self._loading:
            self._loading[sequence] = None
            salvages = self.refusals.has_lasted(sequence)
            end = self._segments.end_of(segment)
            self._reads.load(Load(self._topic, sequence, segment, end=end, start=start, salvages=salvages))

    def _opened_blocks(self) -> ColdBlocks:
        if self._blocks is None:
            self._blocks = ColdBlocks()
            self._reads.reads_cold(self)
        return self._blocks

    def _start_of(self, sequence: int, segment: Segment) -> Start | None:
        """Return the start of the record, or of one shortly before it. None if we have to load the index first."""
        if sequence == segment.base:
            return Start(sequence, 0)
        base, offset = self._behind_holes.get(sequence, (-1, 0))
        if base == segment.base:
            return Start(sequence, offset)
        start = self._opened_blocks().start_of(sequence, segment)
        if start is None and segment.index is not None:
            start = Start(*(segment.index.locate(sequence) or (segment.base, 0)))
        return start

    def _read_cached(self, segment: Segment, start: Start, sequence: int) -> ColdBlock | None:
        if not self._reads.reads_cache:
            return None
        descriptor = self._reads.descriptors.get(segment.path)
        read_cached_at = self._reads.files.read_cached_at

        def read(offset: int, size: int) -> bytes:
            return read_cached_at(descriptor, size, offset)

        blocks = self._opened_blocks()
        size = blocks.next_read_size(sequence)
        block = read_block(read, segment.base, start, segment.size, sequence, size)
        blocks.add(block)
        if sequence == start.sequence:  # the reader continues where a block or a segment ended
            piece = self._streams.next_piece(segment, block.end_offset)
            if piece is not None:
                self._reads.load(ReadAhead(self._topic, segment, *piece))
        return block

    def loaded(self, load: AnyLoad) -> None:
        """Apply the result of a thread's read. From now on, `batch_at` may load the same sequence again."""
        if isinstance(load, CompactedLoad):
            self.compacted.loaded(load)
        elif isinstance(load, Load):
            self._loading.pop(load.sequence, None)
            self.learn(load)

    def learn(self, load: Load) -> None:
        """Apply the result of a load: its block, index, holes and error. The load may also come from a compaction."""
        segment = load.segment
        if segment not in self._segments:  # it was removed in the meantime
            return
        self._note_refusal(load)
        if load.index is not None and segment.index is None:
            segment.index = load.index
        if load.index_is_bad_at is not None and segment.index is not None:
            segment.index.cut(load.index_is_bad_at)
        if load.block is not None:
            self._opened_blocks().add(load.block)
        load.holes = [hole for hole in load.holes if (hole.first, hole.end) not in self.holes]
        for hole in load.holes:
            insort(self.holes, (hole.first, hole.end))
            self._behind_holes[hole.end] = (segment.base, hole.end_offset)
        if load.holes:
            self._reads.damaged(self._topic, load)

    def _note_refusal(self, load: Load) -> None:
        refusals = self.refusals
        if load.bypassed is not None:
            refusals.bypass(*load.bypassed)
        elif load.must_retry:
            refusals.refused(load.sequence)
        elif refusals:
            refusals.was_read(load.sequence, load.block.end if load.block is not None else load.sequence + 1)
            self._reads.read_again(self)
        if load.error is not None and not load.holes:
            self._reads.refused(self, load)

    def forget_idle(self) -> bool:
        """Drop blocks and indexes if nothing was read since the last call. Return whether they are gone."""
        if self._blocks is not None and self._blocks.used:
            self._blocks.used = False
            return False
        self._blocks = None
        self._streams = SequentialReaders()
        for segment in self._segments:
            if segment is not self._segments.active:
                segment.index = None
        return True

    def forget_before(self, sequence: int) -> None:
        if self.refusals:
            self.refusals.forget(lambda gone: gone < sequence)
            self._reads.read_again(self)
        self.holes = [hole for hole in self.holes if hole[1] > sequence]
        self._behind_holes = {end: place for end, place in self._behind_holes.items() if end > sequence}

    def drop(self) -> None:
        """End the faults of refused reads, because the topic is deleted."""
        self._reads.forget(self)
        self._reads.forget(self.compacted)

    def headers_from(self, sequence: int) -> Iterator[Header]:
        """Yield the headers of the records on disk, starting with the one that holds `sequence`. Blocks on the disk."""
        files = self._reads.files
        for segment in self._segments.starting_with(sequence):
            with opened_to_read(files, segment.path) as read:
                start = _proven_start(read, segment, sequence)
                walk = SegmentWalk(
                    read,
                    offset=start.offset,
                    sequence=start.sequence,
                    end=segment.size,
                    verify=False,
                    next_base=self._segments.end_of(segment),
                )
                for block in walk.blocks():
                    for _, header in block.headers:
                        if header.end_sequence > sequence:
                            yield header

    def compacted_messages(self) -> Iterator[tuple[int, int, int]]:
        """Yield (sequence, count, due) of the messages that are only in compacted files. Blocks on the disk.

        `due` is a wall-clock time in milliseconds, or 0 for messages that aren't deferred.
        """
        for header in self.compacted.headers():
            if header.base_sequence < self._segments.first:
                due = header.timestamp // 1_000_000 + header.delay_ms + 1 if header.delay_ms else 0
                yield header.base_sequence, header.count, due


def _proven_start(read: ReadAt, segment: Segment, sequence: int) -> Start:
    """Return the indexed position for the sequence if a record really starts there, otherwise the segment's start."""
    entry = segment.index.locate(sequence) if segment.index is not None else None
    if entry is not None:
        header = decode_header(read(entry[1], HEADER_SIZE), 0)
        if header is not None and header.base_sequence == entry[0]:
            return Start(*entry)
    return Start(segment.base, 0)
