"""Finding out what a segment really holds, after a write or a sync of it has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsqd.log.reading.cold import Start
from nsqd.log.reading.refusals import ReadRefused, strictly
from nsqd.log.segment import BLOCK_SIZE, Segment, SegmentWalk

if TYPE_CHECKING:
    from nsqd.log.files import Files
    from nsqd.log.segment_list import SegmentList

NOTHING: Final = -1  # no offset, in place of `rewrite_from`: everything was synced


def prove_segments(
    files: Files,
    segments: SegmentList,
    synced: tuple[int, int, int],
    *,
    doubts_unsynced: bool,
    gives_up: Callable[[], bool],
) -> bool:
    """Read again what is in doubt: the end of the active segment, and after a failed sync all that was not `synced`.

    Return whether all of it is what was written. Raises ReadRefused if the disk refuses to read; if `gives_up` says
    that the refusal has lasted, the segment counts as not proven instead. Raises OSError if the disk does not take what
    has to be written once more.
    """
    base, synced_offset, _ = synced
    is_proven = True
    for segment in segments:
        if doubts_unsynced and segment.base >= base:
            rewrite_from = synced_offset if segment.base == base else 0
        elif segment is segments.active:
            rewrite_from = NOTHING
        else:
            continue
        try:
            is_proven &= prove_segment(files, segment, end=segments.end_of(segment), rewrite_from=rewrite_from)
        except ReadRefused:
            if not gives_up():
                raise
            is_proven = False
    return is_proven


def prove_segment(files: Files, segment: Segment, *, end: int, rewrite_from: int = NOTHING) -> bool:
    """Cut off what stands behind the last whole record, and return whether all before it is what was written.

    `end` is the sequence at which the records should end. Nothing from `rewrite_from` on was synced. After a failed
    sync, the kernel marks pages as clean that never reached the disk, so these bytes are written once more and synced.

    Raises ReadRefused if the disk does not give the bytes, and OSError if it does not take them.
    """
    unsynced_from = rewrite_from if rewrite_from != NOTHING else segment.size
    descriptor = files.open_to_write(segment.path)
    try:
        if files.size(descriptor) > segment.size:
            files.truncate(descriptor, segment.size)
        read = strictly(files, descriptor, segment.path)
        start = _last_indexed(segment, unsynced_from)
        walk = SegmentWalk(read, offset=start.offset, sequence=start.sequence, end=segment.size, verify=True)
        walk.run()
        if (walk.offset, walk.sequence) != (segment.size, end) or walk.holes:
            return False
        for offset in range(unsynced_from, segment.size, BLOCK_SIZE):
            data = read(offset, min(BLOCK_SIZE, segment.size - offset))
            files.write_fully(descriptor, [data], offset)
        if unsynced_from < segment.size:
            files.sync(descriptor)
        return True
    finally:
        files.close(descriptor)


def _last_indexed(segment: Segment, offset: int) -> Start:
    """Return the last record at or before `offset` that the index knows, or else the segment's start."""
    index = segment.index
    if index is not None:
        for place in range(len(index) - 1, -1, -1):
            if index.offsets[place] <= offset:
                return Start(index.sequences[place], index.offsets[place])
    return Start(segment.base, 0)
