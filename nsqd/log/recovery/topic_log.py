"""Recovery of one topic's log after a crash, a power cut or disk damage.

We read only the part after the last checkpoint, plus the compacted files. Bad bytes fall into three groups:

- at the very end of the log: a torn write. We copy the bytes aside and cut them off. A power cut may tear several files.
- followed by a sound record: damage. We copy the bytes aside and report them; readers skip them.
- refused by the disk: unknown. We raise ReadRefused and change nothing, because they may be sound
  (see reading/refusals.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from nsqd.log.damage import Damage
from nsqd.log.data_path import LOG_JSON, DataPath, keep_small_file_aside, write_log_json
from nsqd.log.log_state import LogState
from nsqd.log.reading.cold import copy_aside, keep_aside
from nsqd.log.reading.compacted import number_of_name, scan_compacted
from nsqd.log.reading.refusals import ReadRefused, opened_to_read, strictly
from nsqd.log.record import HEADER_SIZE, decode_header
from nsqd.log.recovery.torn_segments import count_torn, remove_segment, start_of_recovery
from nsqd.log.segment import (
    BLOCK_SIZE,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    Hole,
    ReadAt,
    Segment,
    SegmentIndex,
    SegmentWalk,
    base_of_name,
    load_index,
    save_index,
    segment_name,
)

if TYPE_CHECKING:
    from nsqd.log.files import Files
    from nsqd.log.journal.own_changes import LogCheckpoint


def recover_log(
    files: Files,
    data_path: DataPath,
    topic: str,
    checkpoint: LogCheckpoint | None,
    new_id: Callable[[], str],
    damage: list[Damage],
) -> LogState:
    """Read a log, cut off a torn tail, and append any damage to `damage`.

    `checkpoint` is the journal's last one for this topic's log, unless that log was deleted. If this raises
    ReadRefused, call it again with the same `damage`: a torn tail that was cut before the refusal is in that list, and
    the next call won't find it again.
    """
    folder = data_path.topic_folder(topic)
    log_id = data_path.read_log_id(folder)
    if log_id is not None and (checkpoint is None or checkpoint.log_id == log_id):
        return _Recovery(files, folder, topic, log_id, checkpoint, damage).run(new_id)
    if log_id is None:
        recovery = _Recovery(
            files, folder, topic, checkpoint.log_id if checkpoint is not None else new_id(), checkpoint, damage
        )
        recovery.restore_identity(has_segments=data_path.has_segments(topic))
    else:
        # The folder or the journal is an older copy. Both ids may be known to readers, and new messages will reuse
        # sequences of both logs. So the log needs a third id.
        recovery = _Recovery(files, folder, topic, new_id(), None, damage)
        recovery.assign_new_identity(
            f"the log's id is {log_id}, but the journal has {checkpoint.log_id if checkpoint else ''}"
        )
    return recovery.run(new_id)


class _Recovery:
    def __init__(
        self,
        files: Files,
        folder: Path,
        topic: str,
        log_id: str,
        checkpoint: LogCheckpoint | None,
        damage: list[Damage],
    ) -> None:
        self._files = files
        self._folder = folder
        self._topic = topic
        self._checkpoint = checkpoint
        self._state = LogState(log_id)
        self._damage = damage

    def run(self, new_id: Callable[[], str]) -> LogState:
        state = self._state
        state.segments = self._find_segments()
        if state.segments:
            self._read_segments()
        self._read_compacted()
        if self._checkpoint is not None and state.tail < self._checkpoint.sequence:
            self._replace_id_after_loss(new_id())
        if not self._ends_at_checkpoint():
            self._mark_names_unsynced()
        return state

    def _ends_at_checkpoint(self) -> bool:
        """Return whether the log ends exactly at its checkpoint, so that all its file names were synced as well.

        An empty log's checkpoint doesn't count: it is recorded when the topic is created, before any sync.
        """
        checkpoint, segments = self._checkpoint, self._state.segments
        if checkpoint is None or not segments:
            return False
        return checkpoint[1:] == (segments[-1].base, segments[-1].size, self._state.tail) != (0, 0, 0)

    def _mark_names_unsynced(self) -> None:
        """Have the store sync the folder's names again: the last process may have stopped before doing so.

        Without a checkpoint, we also don't know which segments were ever synced, so all of them count as unsynced.
        """
        state = self._state
        paths = [segment.path for segment in state.segments]
        if self._checkpoint is None:
            state.unsynced_files = paths
        state.unsynced_files = [*(state.unsynced_files or paths[-1:]), self._folder / LOG_JSON]
        state.unsynced_folders = [self._folder, self._folder.parent]

    def restore_identity(self, *, has_segments: bool) -> None:
        """Replace a lost or damaged log.json."""
        kept = keep_small_file_aside(self._files, self._folder / LOG_JSON)
        self.save_identity()
        # A folder without segments is new. A power cut before its log.json was synced isn't damage.
        if kept is not None or self._checkpoint is not None or has_segments:
            word = "missing" if kept is None else "damaged"
            self._note(LOG_JSON, 0, 0, 0, kept, f"{LOG_JSON} is {word}; rewriting it")

    def assign_new_identity(self, why: str) -> None:
        kept = keep_small_file_aside(self._files, self._folder / LOG_JSON)
        self.save_identity()
        self._state.differs_from_journal = True
        self._note(LOG_JSON, 0, 0, 0, kept, f"{why}; assigning a new id, and its channels start from the beginning")

    def save_identity(self) -> None:
        """Write the log's id to log.json. If the disk is full, start anyway.

        The log can be read then, but refuses new messages until its id is saved.
        """
        try:
            write_log_json(self._files, self._folder, self._topic, self._state.log_id, durable=True)
        except OSError as error:
            self._state.unsaved_identity = error

    def _find_segments(self) -> list[Segment]:
        names = self._files.names_in(self._folder)
        bases = [base for name in names if (base := base_of_name(name)) is not None]
        known = {segment_name(base).removesuffix(LOG_SUFFIX) for base in bases}
        for name in names:
            orphan = name.endswith(INDEX_SUFFIX) and name.removesuffix(INDEX_SUFFIX) not in known
            if orphan or name.endswith(".tmp"):
                with suppress(OSError):  # it's harmless, and a later start tries again
                    self._files.unlink(self._folder / name)
        paths = [self._folder / segment_name(base) for base in bases]
        return [Segment(path, base, self._files.size_of(path)) for path, base in zip(paths, bases, strict=True)]

    def _read_compacted(self) -> None:
        for name in self._files.names_in(self._folder):
            if (number := number_of_name(name)) is None:
                continue
            found, holes = scan_compacted(self._files, self._folder, number)
            self._state.compacted.append(found)
            for hole in holes:
                kept = keep_aside(self._files, found.path, "damaged", hole.offset, hole.end_offset)
                self._note(name, hole.offset, hole.first, hole.end, kept, "damage is skipped")

    def _read_segments(self) -> None:
        segments = self._state.segments
        for _ in range(count_torn(self._files, segments, self._checkpoint)):
            self._drop(segments.pop())
        place, offset, sequence = start_of_recovery(segments, self._checkpoint)
        self._state.synced = (segments[place].base, offset, sequence)
        for segment, following in pairwise(segments[: place + 1]):
            self._check_end(segment, following.base)
        for segment, following in pairwise(segments[place:]):
            self._read_segment(segment, offset, sequence, following.base)
            offset, sequence = 0, following.base
        self._state.tail = sequence = self._read_segment(segments[-1], offset, sequence, None)
        if self._state.synced != (segments[-1].base, segments[-1].size, sequence):
            self._state.unsynced_files = [segment.path for segment in segments[place:]]

    def _drop(self, segment: Segment) -> None:
        if segment.size:
            kept = self._keep_torn(segment, 0)
            text = f"torn tail of {segment.size} bytes cut"
            self._note(segment.path.name, 0, segment.base, segment.base, kept, text)
        remove_segment(self._files, segment)

    def _read_segment(self, segment: Segment, offset: int, sequence: int, next_base: int | None) -> int:
        """Read the rest of a segment, and cut off a torn tail. Return the sequence after the last record."""
        files = self._files
        descriptor = files.open_to_write(segment.path)
        try:
            walk = SegmentWalk(
                strictly(files, descriptor, segment.path),
                offset=offset,
                sequence=sequence,
                end=segment.size,
                verify=True,
                next_base=next_base,
            )
            walk.run()
            if next_base is None and walk.offset < segment.size:
                self._cut(segment, descriptor, walk)
        finally:
            files.close(descriptor)
        self._report(segment, walk.holes)
        segment.index = load_index(files, segment)
        segment.index.cut(offset)  # the walk has collected the entries from here on
        for entry in walk.index:
            segment.index.add(*entry)
        if next_base is not None:  # the index of the active segment is saved as the segment grows
            data, saved = segment.index.encode_unsaved(), segment.index.saved
            if data:
                with suppress(OSError):  # the disk may be full, and an index can always be rebuilt
                    save_index(files, segment.index_path, data, saved=saved)
            segment.index = None
        return walk.sequence

    def _cut(self, segment: Segment, descriptor: int, walk: SegmentWalk) -> None:
        """Cut off a torn tail: a write that never finished and was never acknowledged."""
        files = self._files
        kept = self._keep_torn(segment, walk.offset)
        size = segment.size - walk.offset
        self._note(segment.path.name, walk.offset, walk.sequence, walk.sequence, kept, f"torn tail of {size} bytes cut")
        files.truncate(descriptor, walk.offset)
        files.sync(descriptor)
        segment.size = walk.offset

    def _keep_torn(self, segment: Segment, offset: int) -> Path | None:
        try:
            return copy_aside(self._files, segment.path, "torn", offset, segment.size)
        except ReadRefused:  # don't cut bytes we couldn't copy because we couldn't read them
            raise
        except OSError:  # but if there is no space for the copy, start anyway
            return None

    def _check_end(self, segment: Segment, next_base: int) -> None:
        """Report damage if a sealed segment doesn't end where the next one begins. Reads at most its last 2 MiB."""
        files = self._files
        index = load_index(files, segment)
        try:
            with opened_to_read(files, segment.path) as read:
                walk = self._walk_end(read, segment, index, next_base)
        except ReadRefused:  # leave it to the readers, which can wait longer than startup
            return
        if walk is not None:
            self._report(segment, walk.holes)

    def _walk_end(self, read: ReadAt, segment: Segment, index: SegmentIndex, next_base: int) -> SegmentWalk | None:
        """Walk from the last indexed record to the end. Return None if that's too far: readers will find any damage."""
        offset, sequence = 0, segment.base
        if index:
            offset, sequence = index.offsets[-1], index.sequences[-1]
            header = decode_header(read(offset, HEADER_SIZE), 0)
            if header is None or header.base_sequence != sequence:
                offset, sequence = 0, segment.base
        if segment.size - offset > 2 * BLOCK_SIZE:
            return None
        walk = SegmentWalk(read, offset=offset, sequence=sequence, end=segment.size, verify=False, next_base=next_base)
        walk.run()
        return walk

    def _report(self, segment: Segment, holes: Iterable[Hole]) -> None:
        for hole in holes:
            self._state.holes.append(hole)
            kept = keep_aside(self._files, segment.path, "damaged", hole.offset, hole.end_offset)
            self._note(segment.path.name, hole.offset, hole.first, hole.end, kept, "damage is skipped")

    def _replace_id_after_loss(self, log_id: str) -> None:
        """Give a log that has lost synced messages a new id, because new messages will reuse their sequences.

        Otherwise a reader of history could mistake the new messages for ones that it has already read.
        """
        assert self._checkpoint is not None
        state = self._state
        file = state.segments[-1].path.name if state.segments else ""
        offset = state.segments[-1].size if state.segments else 0
        text = f"the log ends at {state.tail}, but was synced up to {self._checkpoint.sequence}"
        self._note(file, offset, state.tail, self._checkpoint.sequence, None, text)
        state.log_id = log_id
        self.save_identity()

    def _note(self, file: str, offset: int, first: int, end: int, kept: Path | None, text: str) -> None:
        damage = Damage(self._topic, file, offset, first, end, str(kept) if kept else "", text)
        if damage not in self._damage:  # otherwise an earlier try, before a refused read, has found it
            self._damage.append(damage)
