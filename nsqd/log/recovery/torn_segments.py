"""Finds where recovery starts to read a log, and which last segments a power cut has left without a whole record.

A power cut may lose the data of a new segment, and the end of the one before, but keep the new one's name:

    0.log   [ 0 .. 17 ][ lost ]      checkpoint: 12
    23.log  [ lost ]

If 23.log stayed, its name would say that there were 23 messages. Channels would skip the lost ones, and readers of
history would see a gap. But nothing after the checkpoint was certainly synced, so history hasn't shown these messages.
They are a torn tail that spans two files, and new messages may have their sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqd.log.files import remove_file
from nsqd.log.reading.refusals import opened_to_read
from nsqd.log.segment import Segment, SegmentWalk

if TYPE_CHECKING:
    from nsqd.log.files import Files
    from nsqd.log.journal.own_changes import LogCheckpoint


def start_of_recovery(segments: Sequence[Segment], checkpoint: LogCheckpoint | None) -> tuple[int, int, int]:
    """Return where reading has to start: the number of the segment, the offset in it, and the sequence there."""
    if checkpoint is None:
        return len(segments) - 1, 0, segments[-1].base
    for place, segment in enumerate(segments):
        if segment.base == checkpoint.base and segment.size >= checkpoint.offset:
            return place, checkpoint.offset, checkpoint.sequence
    # The segment was finished and removed after the checkpoint, or it is shorter than before.
    before = [place for place, segment in enumerate(segments) if segment.base < checkpoint.sequence]
    place = before[-1] if before else 0
    return place, 0, segments[place].base


def count_torn(files: Files, segments: Sequence[Segment], checkpoint: LogCheckpoint | None) -> int:
    """Return how many of the last segments are torn as a whole. Raises ReadRefused.

    Such a segment has no whole record, and the segment before it ends before the first sequence of this one.
    """
    if checkpoint is None or not segments:
        return 0
    start, offset, sequence = start_of_recovery(segments, checkpoint)
    place = len(segments) - 1
    while place > start and not _has_record(files, segments[place]):
        before = segments[place - 1]
        end = _end_of(files, before, *((offset, sequence) if place - 1 == start else (0, before.base)))
        if not checkpoint.sequence <= end < segments[place].base:
            break
        place -= 1
    return len(segments) - 1 - place


def _has_record(files: Files, segment: Segment) -> bool:
    with opened_to_read(files, segment.path) as read:
        walk = SegmentWalk(read, offset=0, sequence=segment.base, end=segment.size, verify=True)
        return next(walk.blocks(with_headers=False), None) is not None


def _end_of(files: Files, segment: Segment, offset: int, sequence: int) -> int:
    """Return the sequence after the last whole record of a segment."""
    with opened_to_read(files, segment.path) as read:
        walk = SegmentWalk(read, offset=offset, sequence=sequence, end=segment.size, verify=True)
        walk.run()
    return walk.sequence


def remove_segment(files: Files, segment: Segment) -> None:
    """Remove a torn segment. Its name must not come back, because the segment before may outgrow it."""
    remove_file(files, segment.index_path)
    remove_file(files, segment.path)
    files.sync_folder(segment.path.parent)
