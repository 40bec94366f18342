"""The plan and the job of a compaction: first choose the files worth rewriting, then copy their needed messages.

    CompactionPlan ──mark_needed(), in slices──> decide() ──> CompactionJob ──perform()──> carried.N
        │ on the loop, between turns                              │ in a thread               │ synced, then renamed
        └ one byte per message of the segments                    └ copies                    └ only now segments may go

A job takes the longest run of segments, starting with the oldest, of which less than half is needed. That way it always
writes less than it frees. A segment full of needed messages simply stays until enough finished messages follow it.
For example, of three segments of 100 MB each, all of the first is needed, 40 MB of the second and none of the third.
The first alone isn't worth it, nor are the first two (140 of 200 MB), but all three are (140 of 300 MB). Compacted
files follow the same rule. Small ones are also merged into a file that is being written anyway, so that there are never
many.

If the disk refuses a read, the whole job fails. Nothing is removed, and a later job tries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from errno import ENOENT
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from nsqd.broker.batch import Batch
from nsqd.log.files import Files, error_text, remove_file
from nsqd.log.reading.cold import Load, Start
from nsqd.log.reading.compacted import CompactedFile
from nsqd.log.reading.refusals import ReadRefused, opened_to_read, refused_to_read
from nsqd.log.record import UnknownFlags, decode_batch, decode_header, encode
from nsqd.log.segment import Segment, load_index

MOST_MARKED: Final = 16_000_000  # messages in one plan: each takes a byte
_WRITE_SIZE: Final = 1 << 20


class CompactedLog(Protocol):
    """The log that a job compacts, as the job sees it."""

    @property
    def topic(self) -> str: ...

    @property
    def dropped(self) -> bool:
        """Whether the topic was deleted. The job reads this in its thread."""


class SegmentWithEnd(NamedTuple):
    """A sealed segment, and the sequence after its last message."""

    segment: Segment
    end: int


class CompactionPlan:
    """Marks the needed messages of the oldest segments and of the compacted files."""

    def __init__(
        self, log: CompactedLog, segments: list[SegmentWithEnd], files: list[CompactedFile], first: int, epoch: int
    ) -> None:
        self.log = log
        self.epoch = epoch
        self._segments = segments
        self._first = first
        self._marks = bytearray(segments[-1].end - first if segments else 0)
        self._files = [(file, bytearray(file.messages)) for file in reversed(files)]  # the newest first

    def mark_needed(self, sequences: Iterable[int]) -> None:
        first, marks, length = self._first, self._marks, len(self._marks)
        for sequence in sequences:
            place = sequence - first
            if place >= 0:
                if place < length:
                    marks[place] = 1
            else:
                self._mark_compacted(sequence)

    def _mark_compacted(self, sequence: int) -> None:
        for file, marks in self._files:
            message = file.message_of(sequence)
            if message >= 0:
                marks[message] = 1
                return

    def decide(self, number: int, folder: Path) -> CompactionJob | None:
        """Return a job, or None if no file is worth compacting."""
        segments, needed = self._choose_segments()
        files = self._choose_files(needed)
        if not segments and not files:
            return None
        parts = [(ended, self._marks[ended.segment.base - self._first : ended.end - self._first]) for ended in segments]
        return CompactionJob(self.log, self.epoch, parts, files, CompactedFile(folder, number))

    def _choose_segments(self) -> tuple[list[SegmentWithEnd], float]:
        """Return the segments worth compacting, and roughly how many of their bytes are needed."""
        chosen, chosen_bytes = 0, 0.0
        needed, size = 0.0, 0
        for place, (segment, end) in enumerate(self._segments):
            size += segment.size
            count = self._marks.count(1, segment.base - self._first, end - self._first)
            needed += segment.size * count / max(1, end - segment.base)
            if needed * 2 < size or not needed:  # the second case: empty segments, where 0 < 0 is false
                chosen, chosen_bytes = place + 1, needed
        return self._segments[:chosen], chosen_bytes

    def _choose_files(self, writing: float) -> list[tuple[CompactedFile, bytearray]]:
        """Return the files that are less than half needed, or that add less than the job already writes."""
        chosen = []
        for file, marks in self._files:
            needed = file.size * marks.count(1) / max(1, file.messages)
            if needed * 2 < file.size or needed <= writing:
                chosen.append((file, marks))
                writing += needed
        return chosen[::-1]


class CompactionJob:
    """Copies the needed messages into one new file. Only `perform` runs in a thread, the rest on the loop."""

    def __init__(
        self,
        log: CompactedLog,
        epoch: int,
        segments: list[tuple[SegmentWithEnd, bytearray]],
        files: list[tuple[CompactedFile, bytearray]],
        target: CompactedFile,
    ) -> None:
        self.log = log
        self.epoch = epoch
        self.target = target  # stays empty if nothing was needed or the job failed
        self.end = segments[0][0].segment.base if segments else 0  # segments before this sequence can be removed
        self.done: list[CompactedFile] = []  # compacted files that can be removed
        self.loads: list[Load] = []  # reads that found damage
        self.error: str | None = None
        self.is_refused = False  # the disk refused a read
        self._segments = segments
        self._old = files
        self._buffers: list[bytes] = []
        self._buffered = 0
        self._written = 0
        self._following = 0  # the sequence after the last message copied so far

    @property
    def frees(self) -> bool:
        """Whether the job removes more bytes than it wrote. A segment with damaged needed messages can't be removed."""
        gone = sum(ended.segment.size for ended, _ in self._segments if ended.end <= self.end)
        return gone + sum(file.size for file in self.done) > self.target.size

    def perform(self, files: Files) -> None:
        path = self.target.path.with_name(self.target.path.name + ".tmp")
        try:
            if any(1 in marks for _, marks in (*self._old, *self._segments)):
                self._write(files, path)
            else:
                self._skip_copying()
        except OSError as error:
            self.error = error_text("compact", error.filename or path, error)
            self.is_refused = isinstance(error, ReadRefused)
            self.target = CompactedFile(self.target.path.parent, self.target.number)
            try:
                remove_file(files, path)
            except OSError:  # the next start removes it
                pass

    def _skip_copying(self) -> None:
        self.done = [file for file, _ in self._old]
        if self._segments:
            self.end = self._segments[-1][0].end

    def _write(self, files: Files, path: Path) -> None:
        descriptor = files.open_to_write(path)
        try:
            # Check this after opening the file. A deletion first sets `dropped` and then moves the folder away. So if
            # `dropped` is still false, our file is in the old folder, not in that of a new topic of the same name.
            if self.log.dropped:
                raise FileNotFoundError(ENOENT, "the topic was deleted", str(path))
            files.truncate(descriptor, 0)
            # Compacted files come first, as their sequences are lower than those of segments. They may overlap.
            for batch in self._from_files(files):
                self._add(files, descriptor, batch)
            for ended, marks in self._segments:
                if not self._copy_segment(files, descriptor, ended, marks):
                    break
                self.end = ended.end
            self._flush(files, descriptor)
            if len(self.target):
                files.sync(descriptor)
        finally:
            files.close(descriptor)
        if not len(self.target):  # none of the needed messages can be read
            remove_file(files, path)
            return
        files.rename(path, self.target.path)
        files.sync_folder(path.parent)

    def _add(self, files: Files, descriptor: int, batch: Batch) -> None:
        if batch.base_sequence < self._following:  # another compacted file had it already
            if batch.end_sequence <= self._following:
                return
            batch = part_of(batch, self._following, batch.end_sequence)
        buffers = encode(batch)
        size = sum(map(len, buffers))
        self.target.add(batch.base_sequence, batch.count, self._written + self._buffered, size)
        self._following = batch.end_sequence
        self._buffers += buffers
        self._buffered += size
        if self._buffered >= _WRITE_SIZE:
            self._flush(files, descriptor)

    def _flush(self, files: Files, descriptor: int) -> None:
        files.write_fully(descriptor, self._buffers, self._written)
        self._written += self._buffered
        self._buffers = []
        self._buffered = 0

    # From compacted files

    def _from_files(self, files: Files) -> Iterator[Batch]:
        """Yield the needed messages of all compacted files, in the order of their sequences."""
        runs = sorted(
            (first, number, place, start, end)
            for number, (file, marks) in enumerate(self._old)
            for first, place, start, end in _needed_runs(file, marks)
        )
        damaged: set[int] = set()
        with ExitStack() as stack:
            reads = [stack.enter_context(opened_to_read(files, file.path)) for file, _ in self._old]
            for _, number, place, start, end in runs:
                file = self._old[number][0]
                data = reads[number](*file.extent(place))
                header = decode_header(data, 0)
                try:
                    batch = decode_batch(header, data, 0) if header is not None else None
                except UnknownFlags as unknown:
                    raise refused_to_read(unknown, file.path) from unknown
                if batch is None:
                    damaged.add(number)
                else:
                    yield part_of(batch, batch.base_sequence + start, batch.base_sequence + end)
        self.done = [file for number, (file, _) in enumerate(self._old) if number not in damaged]

    # From segments

    def _copy_segment(self, files: Files, descriptor: int, ended: SegmentWithEnd, marks: bytearray) -> bool:
        """Copy a segment's needed messages. Returns False if some are damaged, so that the segment must stay."""
        segment, end = ended
        place = marks.find(1)
        if place < 0:
            return True
        index = load_index(files, segment)
        start = Start(segment.base, 0)
        while place >= 0:
            sequence = segment.base + place
            indexed = index.locate(sequence)
            if indexed is not None and indexed[0] > start.sequence:
                start = Start(*indexed)
            load = Load(self.log.topic, sequence, segment, end=end, start=start)
            load.perform(files)
            if load.holes:
                self.loads.append(load)
            if load.must_retry and load.error is not None:
                raise load.error
            if load.block is None:
                return False
            block = load.block
            start = Start(block.end, block.end_offset)  # the block ends before any damage, so resume right there
            while 0 <= place < block.end - segment.base:
                batch = block.batch_at(segment.base + place)
                last = batch.end_sequence - segment.base
                after = marks.find(0, place, last)
                after = last if after < 0 else after
                self._add(files, descriptor, part_of(batch, segment.base + place, segment.base + after))
                place = marks.find(1, after)
        return True


def _needed_runs(file: CompactedFile, marks: bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Yield each run of needed messages in a record as (first sequence, record number, start and end within it)."""
    place = 0
    message = marks.find(1)
    while message >= 0:
        while file.start(place) + file.count(place) <= message:
            place += 1
        record = file.start(place)
        last = record + file.count(place)
        after = marks.find(0, message, last)
        after = last if after < 0 else after
        yield file.first(place) + message - record, place, message - record, after - record
        message = marks.find(1, after)


def part_of(batch: Batch, first: int, end: int) -> Batch:
    """Return the messages [first, end) of the batch as a batch of their own."""
    if first == batch.base_sequence and end == batch.end_sequence:
        return batch
    place = first - batch.base_sequence
    offsets = batch.offsets[place : place + end - first + 1]
    start = offsets[0]
    return Batch(
        first,
        batch.base_id + place,
        batch.timestamp,
        batch.payload[start : offsets[-1]],
        [offset - start for offset in offsets],
        batch.delay_ms,
        batch.key,
        headers=batch.headers_between(first, end),
    )
