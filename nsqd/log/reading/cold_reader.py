"""Reading one log from disk: where a sequence lies, what was read last, and where nothing can be read."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from nsqd.log.reading.cold import (
    NO_CACHED_READS,
    AnyLoad,
    ColdBlock,
    ColdBlocks,
    Damaged,
    Load,
    ReadDescriptors,
    Start,
    read_block,
)
from nsqd.log.reading.read_ahead import ReadAhead, SequentialReaders
from nsqd.log.reading.refusals import ReadRefusals, opened_to_read
from nsqd.log.record import HEADER_SIZE, Header, UnknownFlags, decode_header
from nsqd.log.segment import Hole, ReadAt, Segment, SegmentWalk

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.log.files import Files
    from nsqd.log.segment_list import SegmentList


class HoldsBlocks(Protocol):
    def forget_idle(self) -> bool:
        """Drop the blocks if nothing was read since the last call. Return whether nothing is left."""


class RefusedReader(Protocol):
    refusals: ReadRefusals

    def ask_again(self) -> None:
        """Read again what the disk has refused for long."""


class ReadingHost(Protocol):
    """What reading asks of the store."""

    files: Files
    descriptors: ReadDescriptors
    reads_cache: bool  # whether the file system can read from the page cache alone

    def now(self) -> float: ...

    def load(self, load: AnyLoad) -> None:
        """Have a thread perform the load. The log then takes it back with `loaded`."""

    def reads_cold(self, reader: HoldsBlocks) -> None:
        """Note that the reader holds blocks, until its `forget_idle` returns True."""

    def damaged(self, topic: str, load: AnyLoad) -> None:
        """Report the holes that the load has found."""

    def refused(self, reader: RefusedReader, load: AnyLoad) -> None:
        """Note that the disk has refused a read; `load.bypassed` tells whether readers bypass it."""

    def read_again(self, reader: RefusedReader) -> None:
        """Note that the disk refuses less than before, perhaps nothing."""


class ColdReader:
    """Reads batches of one log from its segments: from blocks in memory, from the page cache, or in a thread.

    May touch nothing but its blocks and, of the segments, their indexes. It knows holes, where nothing can be read any
    more, and refusals, where the disk gives nothing now.
    """

    __slots__ = (
        "_behind_holes",
        "_blocks",
        "_holes",
        "_host",
        "_loading",
        "_segments",
        "_streams",
        "_topic",
        "refusals",
    )

    def __init__(
        self,
        topic: str,
        host: ReadingHost,
        segments: SegmentList,
        *,
        holes: Iterable[Hole],
    ) -> None:
        self._topic = topic
        self._host = host
        self._segments = segments
        self._holes = sorted((hole.first, hole.end) for hole in holes)
        self._behind_holes: dict[int, tuple[int, int]] = {}  # end of a hole -> segment's base, offset
        self._blocks: ColdBlocks | None = None
        self._streams = SequentialReaders()
        self._loading: dict[int, None] = {}  # not a set, because an empty set takes 150 bytes more
        self.refusals = ReadRefusals(host.now)

    def next_readable(self, sequence: int) -> int:
        for first, end in self._holes:
            if first <= sequence < end:
                sequence = end
        return sequence

    def batch_at(self, sequence: int) -> Batch | None:
        """Return the batch if it was read last or is in the page cache; otherwise None, and a thread reads it."""
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
            pass  # of the second the thread will learn again, and report it
        except OSError as error:  # the thread will meet the same error, and report it
            if error.errno in NO_CACHED_READS:
                self._host.reads_cache = False
        if self.refusals.end_of(sequence) == sequence:
            self._load(sequence, segment, start)
        return None

    def ask_again(self) -> None:
        """Read again what the disk has refused for long, even if no reader waits for it now."""
        if (sequence := self.refusals.oldest_stretch) is not None:
            self._load(sequence, self._segments.holding(sequence), None)

    def _load(self, sequence: int, segment: Segment, start: Start | None) -> None:
        if sequence not in self._loading:
            self._loading[sequence] = None
            salvages = self.refusals.has_lasted(sequence)
            end = self._segments.end_of(segment)
            self._host.load(Load(self._topic, sequence, segment, end=end, start=start, salvages=salvages))

    def _opened_blocks(self) -> ColdBlocks:
        if self._blocks is None:
            self._blocks = ColdBlocks()
            self._host.reads_cold(self)
        return self._blocks

    def _start_of(self, sequence: int, segment: Segment) -> Start | None:
        """Return a record's start from which the sequence is not far; None: the index has to be read first."""
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
        if not self._host.reads_cache:
            return None
        descriptor = self._host.descriptors.get(segment.path)
        read_cached_at = self._host.files.read_cached_at

        def read(offset: int, size: int) -> bytes:
            return read_cached_at(descriptor, size, offset)

        blocks = self._opened_blocks()
        size = blocks.next_read_size(sequence)
        block = read_block(read, segment.base, start, segment.size, sequence, size)
        blocks.add(block)
        if sequence == start.sequence:  # the reader goes on where a block, or a segment, has ended
            piece = self._streams.next_piece(segment, block.end_offset)
            if piece is not None:
                self._host.load(ReadAhead(self._topic, segment, *piece))
        return block

    def loaded(self, load: Load) -> None:
        """Take what a thread has read. The same sequence may be asked for again."""
        self._loading.pop(load.sequence, None)
        self.learn(load)

    def learn(self, load: Load) -> None:
        """Take what a load has found, also if a carry job performed it."""
        segment = load.segment
        if segment not in self._segments:  # it was removed meanwhile
            return
        self._note_refusal(load)
        if load.index is not None and segment.index is None:
            segment.index = load.index
        if load.index_is_bad_at is not None and segment.index is not None:
            segment.index.cut(load.index_is_bad_at)
        if load.block is not None:
            self._opened_blocks().add(load.block)
        load.holes = [hole for hole in load.holes if (hole.first, hole.end) not in self._holes]
        for hole in load.holes:
            insort(self._holes, (hole.first, hole.end))
            self._behind_holes[hole.end] = (segment.base, hole.end_offset)
        if load.holes:
            self._host.damaged(self._topic, load)

    def _note_refusal(self, load: Load) -> None:
        refusals = self.refusals
        if load.bypassed is not None:
            refusals.bypass(*load.bypassed)
        elif load.is_put_off:
            refusals.refused(load.sequence)
        elif refusals:
            refusals.was_read(load.sequence, load.block.end if load.block is not None else load.sequence + 1)
            self._host.read_again(self)
        if load.error is not None and not load.holes:
            self._host.refused(self, load)

    def forget_idle(self) -> bool:
        """Drop the blocks if nothing was read since the last call. Return whether nothing is left."""
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
            self._host.read_again(self)
        self._holes = [hole for hole in self._holes if hole[1] > sequence]
        self._behind_holes = {end: place for end, place in self._behind_holes.items() if end > sequence}

    def headers_from(self, sequence: int) -> Iterator[Header]:
        """Yield the headers of the records on disk, beginning with the record of the sequence. Blocks on the disk."""
        files = self._host.files
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
                    yield from (header for _, header in block.headers if header.end_sequence > sequence)


def _proven_start(read: ReadAt, segment: Segment, sequence: int) -> Start:
    """Return the place in the index, if a record of that sequence starts there, or else the segment's start."""
    entry = segment.index.locate(sequence) if segment.index is not None else None
    if entry is not None:
        header = decode_header(read(entry[1], HEADER_SIZE), 0)
        if header is not None and header.base_sequence == entry[0]:
            return Start(*entry)
    return Start(segment.base, 0)
