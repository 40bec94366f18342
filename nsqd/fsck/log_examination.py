"""Checks one topic's log: its id, all records of all segments, its indexes, and the journal's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.log_record import HEADER_SIZE, decode_header
from nsqd.fsck.failing_disk import opened_to_salvage, read_or_report, unreadable
from nsqd.fsck.finding import FsckFinding, FsckSeverity, merge_adjacent
from nsqd.fsck.leftovers import TMP, cut_off, is_kept_aside, leftover
from nsqd.log.data_path import LOG_JSON, DataPath, keep_small_file_aside, write_log_json
from nsqd.log.reading.compacted import CompactedFile, number_of_name, scan_compacted
from nsqd.log.reading.refusals import ReadRefused, Salvage
from nsqd.log.recovery.torn_segments import count_torn
from nsqd.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    Block,
    Hole,
    ReadAt,
    Segment,
    SegmentIndex,
    SegmentWalk,
    base_of_name,
    save_index,
    segment_name,
)

if TYPE_CHECKING:
    from nsqd.log.files import Files
    from nsqd.log.journal.own_changes import LogCheckpoint, RecoveredChanges

_entry: Final = Struct(">QQ")
_NEWER: Final = "written by a later version of nsqd, which is needed to read it"


class LogExamination:
    """A check of one log.

    If `is_known` is True after `run`, the log has the sequences from `first` to `tail`. It's False for the log of a
    deleted topic, if the journal belongs to another log, or if the disk refuses to read a part of this one.
    """

    def __init__(
        self,
        files: Files,
        data_path: DataPath,
        topic: str,
        recovered: RecoveredChanges,
        *,
        new_id: Callable[[], str],
        progress: Callable[[int], None],
    ) -> None:
        self.first = 0
        self.tail = 0
        self.is_known = True
        self.compacted: list[CompactedFile] = []
        self._files = files
        self._folder = data_path.topic_folder(topic)
        self._topic = topic
        self._data_path = data_path
        self._gone = recovered.gone
        self._log_id: str | None = None
        self._checkpoint = recovered.checkpoints.get(topic)
        self._new_id = new_id
        self._progress = progress
        self._newer: list[FsckFinding] = []  # records of a later version

    def run(self, moved: set[str]) -> Iterator[FsckFinding]:
        """Yield the findings.

        `moved` has the ids of the logs in renamed folders of deleted topics. The journal may have lost the deletion.
        """
        names = self._files.names_in(self._folder)
        log_id = yield from read_or_report(
            lambda: self._data_path.read_log_id(self._folder) or "", file=LOG_JSON, topic=self._topic
        )
        if log_id is None:
            self.is_known = False
            return
        self._log_id = log_id or None
        if self._log_id in self._gone:
            self.is_known = False
            yield self._finding(FsckSeverity.NOTE, "folder of a deleted topic; the next start will remove it")
            return
        segments = self._segments(names)
        checkpoint = self._checkpoint
        if checkpoint is not None and checkpoint.log_id in moved:
            self.is_known = False
            checkpoint = None
        if self._log_id is None:
            yield from self._check_missing_id(checkpoint, has_segments=bool(segments))
        elif checkpoint is not None and checkpoint.log_id != self._log_id:
            self.is_known = False
            text = f"the log's id is {self._log_id}, but the journal has {checkpoint.log_id}"
            yield self._finding(FsckSeverity.DAMAGE, text, LOG_JSON)
            checkpoint = None
        torn = self._take_torn(segments, checkpoint)
        for segment, following in pairwise(segments):
            yield from self._unless_refused(segment.path.name, self._examine_sealed(segment, following.base))
        if segments:
            self.first = segments[0].base
            yield from self._unless_refused(segments[-1].path.name, self._examine_last(segments[-1], checkpoint))
        yield from (self._torn(it, 0, it.base) for it in torn if it.size)
        if checkpoint is not None and self.is_known and self.tail < checkpoint.sequence:
            file, size = (segments[-1].path.name, segments[-1].size) if segments else ("", 0)
            text = f"the log ends at {self.tail}, but was synced up to {checkpoint.sequence}"
            yield self._finding(FsckSeverity.DAMAGE, text, file, size, self.tail, checkpoint.sequence)
        yield from self._examine_compacted(names)
        yield from merge_adjacent(self._newer)
        yield from self._leftovers(names, segments + torn)

    def _unless_refused(self, file: str, examination: Iterator[FsckFinding]) -> Iterator[FsckFinding]:
        """Run a file's check. If the disk refuses too much of the file, report that and clear `is_known`."""
        try:
            yield from examination
        except ReadRefused:
            self.is_known = False
            yield unreadable(file, topic=self._topic)

    def _finding(
        self,
        severity: FsckSeverity,
        text: str,
        file: str = "",
        offset: int = 0,
        first: int = 0,
        end: int = 0,
        *,
        repair: Callable[[], str] | None = None,
    ) -> FsckFinding:
        return FsckFinding(severity, text, self._topic, file, offset, first, end, repair)

    def _segments(self, names: list[str]) -> list[Segment]:
        bases = [base for name in names if (base := base_of_name(name)) is not None]
        paths = [self._folder / segment_name(base) for base in bases]
        return [Segment(path, base, self._files.size_of(path)) for path, base in zip(paths, bases, strict=True)]

    def _check_missing_id(self, checkpoint: LogCheckpoint | None, *, has_segments: bool) -> Iterator[FsckFinding]:
        path = self._folder / LOG_JSON

        def write() -> str:
            kept = keep_small_file_aside(self._files, path)
            log_id = checkpoint.log_id if checkpoint is not None else self._new_id()
            write_log_json(self._files, self._folder, self._topic, log_id, durable=True)
            return "rewritten" + (f"; the old file is {kept.name}" if kept else "")

        exists = self._files.exists(path)
        if exists or has_segments or checkpoint is not None:
            text = f"{LOG_JSON} is {'damaged' if exists else 'missing'}"
            yield self._finding(FsckSeverity.DAMAGE, text, LOG_JSON, repair=write)

    # Segments

    def _take_torn(self, segments: list[Segment], checkpoint: LogCheckpoint | None) -> list[Segment]:
        """Take away the last segments if they are torn as a whole, as the next start does, and return them."""
        try:
            count = count_torn(self._files, segments, checkpoint)
        except ReadRefused:
            return []
        torn = segments[len(segments) - count :]
        del segments[len(segments) - count :]
        return torn

    def _examine_sealed(self, segment: Segment, next_base: int) -> Iterator[FsckFinding]:
        with opened_to_salvage(self._files, segment.path) as read:
            walk = self._walk(read, segment, offset=0, sequence=segment.base, end=segment.size, next_base=next_base)
            yield from self._holes(segment, walk, read)
            yield from self._examine_index(read, segment, walk.index, walk.holes, is_sealed=True)
        if walk.sequence > next_base:
            text = f"its records go up to {walk.sequence}, past the start of the next segment"
            yield self._finding(FsckSeverity.DAMAGE, text, segment.path.name, walk.offset, next_base, walk.sequence)

    def _examine_last(self, segment: Segment, checkpoint: LogCheckpoint | None) -> Iterator[FsckFinding]:
        """Check the last segment. Bad bytes before the checkpoint are damage; after it, they may be a torn tail."""
        offset, sequence = 0, segment.base
        holes: list[Hole] = []
        index: list[tuple[int, int]] = []
        with opened_to_salvage(self._files, segment.path) as read:
            if checkpoint is not None and checkpoint.base == segment.base and checkpoint.offset <= segment.size:
                before_checkpoint = self._walk(
                    read, segment, offset=0, sequence=sequence, end=checkpoint.offset, next_base=checkpoint.sequence
                )
                yield from self._holes(segment, before_checkpoint, read)
                offset, sequence = checkpoint.offset, checkpoint.sequence
                holes, index = before_checkpoint.holes, before_checkpoint.index
            walk = self._walk(read, segment, offset=offset, sequence=sequence, end=segment.size, next_base=None)
            yield from self._holes(segment, walk, read)
            yield from self._examine_index(read, segment, index + walk.index, holes + walk.holes, is_sealed=False)
        self.tail = walk.sequence
        if read.refused_in(walk.offset, segment.size):
            self.is_known = False
            yield unreadable(segment.path.name, walk.offset, topic=self._topic)
        elif walk.offset < segment.size:
            yield self._torn(segment, walk.offset, walk.sequence)

    def _torn(self, segment: Segment, offset: int, sequence: int) -> FsckFinding:
        def cut() -> str:
            return cut_off(self._files, segment.path, offset, segment.size)

        text = f"torn tail of {segment.size - offset} bytes"
        return self._finding(FsckSeverity.WARNING, text, segment.path.name, offset, sequence, sequence, repair=cut)

    def _walk(
        self, read: ReadAt, segment: Segment, *, offset: int, sequence: int, end: int, next_base: int | None
    ) -> SegmentWalk:
        walk = SegmentWalk(read, offset=offset, sequence=sequence, end=end, verify=True, next_base=next_base)
        at = offset
        for block in walk.blocks():
            self._note_newer(segment.path.name, block)
            self._progress(walk.offset - at)
            at = walk.offset
        return walk

    def _note_newer(self, file: str, block: Block) -> None:
        for position, header in block.headers:
            if header.unknown_flags:
                first, end = header.base_sequence, header.end_sequence
                self._newer.append(
                    self._finding(FsckSeverity.WARNING, _NEWER, file, block.offset + position, first, end)
                )

    def _holes(self, segment: Segment, walk: SegmentWalk, read: Salvage) -> Iterator[FsckFinding]:
        for hole in walk.holes:
            if read.refused_in(hole.offset, hole.end_offset):
                yield unreadable(segment.path.name, hole.offset, topic=self._topic, first=hole.first, end=hole.end)
                continue
            size = hole.end_offset - hole.offset
            text = f"{size} bytes are damaged" if size > 0 else "messages are missing"
            yield self._finding(FsckSeverity.DAMAGE, text, segment.path.name, hole.offset, hole.first, hole.end)

    def _examine_compacted(self, names: list[str]) -> Iterator[FsckFinding]:
        for name in names:
            if (number := number_of_name(name)) is None:
                continue
            scanned = yield from read_or_report(
                partial(scan_compacted, self._files, self._folder, number), file=name, topic=self._topic
            )
            if scanned is None:
                self.is_known = False
                continue
            found, holes = scanned
            self._progress(found.size)
            self.compacted.append(found)
            self._look_for_newer(found)
            for hole in holes:
                text = f"{hole.end_offset - hole.offset} bytes of a compacted file are damaged"
                yield self._finding(FsckSeverity.DAMAGE, text, name, hole.offset, hole.first, hole.end)

    def _look_for_newer(self, file: CompactedFile) -> None:
        with opened_to_salvage(self._files, file.path) as read:
            for place in range(len(file)):
                offset, _ = file.extent(place)
                header = decode_header(read(offset, HEADER_SIZE), 0)
                if header is not None and header.unknown_flags:
                    first, end = header.base_sequence, header.end_sequence
                    self._newer.append(self._finding(FsckSeverity.WARNING, _NEWER, file.path.name, offset, first, end))

    def has(self, sequence: int) -> bool:
        """Return whether a segment or a compacted file should have this message."""
        return sequence >= self.first or any(file.place_of(sequence) >= 0 for file in self.compacted)

    # Indexes

    def _examine_index(
        self, read: Salvage, segment: Segment, entries: list[tuple[int, int]], holes: list[Hole], *, is_sealed: bool
    ) -> Iterator[FsckFinding]:
        """Check that each index entry points to a record. `entries` are the ones that a rebuilt index would have."""
        path = segment.index_path
        if read.error is not None:  # a rebuilt index would lack the unreadable records
            return

        def rebuild() -> str:
            index = SegmentIndex()
            for entry in entries:
                index.add(*entry)
            save_index(self._files, path, index.encode_unsaved(), saved=0)
            return "rebuilt"

        if not self._files.exists(path):
            if is_sealed and entries:
                yield self._finding(
                    FsckSeverity.NOTE, "there is no index; a reader will rebuild it", path.name, repair=rebuild
                )
            return
        data = yield from read_or_report(partial(self._files.read, path), file=path.name, topic=self._topic)
        if data is None:
            return
        bad = _first_bad_entry(read, data, segment, holes)
        if bad is not None:
            text = "the index is wrong; readers notice and scan the segment instead"
            yield self._finding(FsckSeverity.WARNING, text, path.name, bad, repair=rebuild)

    def _leftovers(self, names: list[str], segments: list[Segment]) -> Iterator[FsckFinding]:
        known = {segment.index_path.name for segment in segments}
        for name in names:
            if name.endswith(TMP) or (name.endswith(INDEX_SUFFIX) and name not in known):
                yield leftover(self._files, self._folder / name, self._topic)
            elif is_kept_aside(name):
                yield self._finding(FsckSeverity.NOTE, "bytes kept aside", name)
            elif not name.endswith((LOG_SUFFIX, INDEX_SUFFIX)) and name != LOG_JSON and number_of_name(name) is None:
                yield self._finding(FsckSeverity.NOTE, "unknown file, ignored", name)


def _first_bad_entry(read: ReadAt, data: bytes, segment: Segment, holes: list[Hole]) -> int | None:
    """Return the byte position of the first index entry that points to no record, or None."""
    last_sequence, last_offset = segment.base, 0
    whole = len(data) - len(data) % _entry.size
    for place, (sequence, offset) in enumerate(_entry.iter_unpack(data[:whole])):
        ascends = sequence > last_sequence and last_offset < offset < segment.size
        if not ascends or not _leads_to_record(read, sequence, offset, holes):
            return place * _entry.size
        last_sequence, last_offset = sequence, offset
    return whole if whole < len(data) else None


def _leads_to_record(read: ReadAt, sequence: int, offset: int, holes: list[Hole]) -> bool:
    if any(hole.offset <= offset < hole.end_offset and hole.first <= sequence < hole.end for hole in holes):
        return True  # the record is damaged, and `_holes` reports that
    header = decode_header(read(offset, HEADER_SIZE), 0)
    return header is not None and header.base_sequence == sequence
