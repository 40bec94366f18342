"""The fault of a log: why it refuses messages, when to retry, and how to verify the log before that.

A failed write may have left half a record at the end of the file. After a failed sync, the kernel may have dropped
bytes that it had accepted. So before we append again, we reread everything in doubt and check its checksums.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.reading.cold import Start
from nsqd.log.reading.refusals import READ_PATIENCE, ReadRefused, strictly
from nsqd.log.segment import BLOCK_SIZE, Segment, SegmentWalk

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.files import DiskError, Files
    from nsqd.log.segment_list import SegmentList
    from nsqd.log.writing.unsynced import Unsynced

ALL_SYNCED: Final = -1  # as `rewrite_from`: there is nothing to rewrite
RETRY_AFTER: Final = 1.0  # seconds from a failure until the next try


class LogFault(StorageFault):
    """The fault of one log, from the first error until a write succeeds.

        OK ──begin──> fault ──after a second: is_due──> the log rereads its end ──proven──> fault, but writing again
        OK <──end── the first write that succeeds <────────────────────────────────────────────────────┘

    Each failure on the way restarts that second. It doesn't restart `is_lasting`, which counts from the first error.
    """

    def __init__(self, topic: str, folder: Path, unsynced: Unsynced, faults: Faults, now: Callable[[], float]) -> None:
        super().__init__(faults, FaultKind.LOG)
        self.topic = topic  # not the log itself: the cycle would keep a deleted log until the next garbage collection
        self.folder = folder
        self._unsynced = unsynced
        self.identity_is_unsaved = False  # log.json, which has the log's id, could not be written
        self._now = now
        self._began_at = 0.0
        self._retry_at = 0.0

    def begin(self, error: DiskError) -> None:
        now = self._now()
        if self.error is None:
            self._began_at = now
        self._retry_at = now + RETRY_AFTER
        super().begin(error)

    @property
    def has_unsynced_names(self) -> bool:
        """Whether a file name in the folder may not be durable, and the sync that is starting doesn't cover it."""
        return bool(self._unsynced.folders)

    @property
    def needs_check(self) -> bool:
        """Whether the end of the log must be verified before anything is appended."""
        return self._retry_at != 0.0

    @property
    def is_due(self) -> bool:
        """Whether it's time to retry after the last failure."""
        return self._now() >= self._retry_at

    @property
    def is_lasting(self) -> bool:
        """Whether to give up on bytes that the disk refuses to read, and continue the log after them."""
        return self._now() - self._began_at >= READ_PATIENCE

    def proven(self) -> None:
        self._retry_at = 0.0

    def end(self) -> None:
        self._retry_at = 0.0
        super().end()


def verify_segments(
    files: Files,
    segments: SegmentList,
    synced: tuple[int, int, int],
    *,
    doubts_unsynced: bool,
    gives_up: Callable[[], bool],
) -> bool:
    """Verify the end of the active segment and, after a failed sync, everything that was not `synced`.

    Returns whether all of it is sound. Raises ReadRefused if the disk refuses to read, but once `gives_up` returns
    True, such a segment just counts as not sound. Raises OSError if rewriting unsynced bytes fails.
    """
    base, synced_offset, _ = synced
    is_proven = True
    for segment in segments:
        if doubts_unsynced and segment.base >= base:
            rewrite_from = synced_offset if segment.base == base else 0
        elif segment is segments.active:
            rewrite_from = ALL_SYNCED
        else:
            continue
        try:
            is_proven &= prove_segment(files, segment, end=segments.end_of(segment), rewrite_from=rewrite_from)
        except ReadRefused:
            if not gives_up():
                raise
            is_proven = False
    return is_proven


def prove_segment(files: Files, segment: Segment, *, end: int, rewrite_from: int = ALL_SYNCED) -> bool:
    """Cut off anything after the last whole record, and return whether the rest is sound and ends at sequence `end`.

    The bytes from `rewrite_from` on were never synced, so we write and sync them again. A second sync alone isn't
    enough: after a failed sync, the kernel marks pages as clean although they never reached the disk.

    Raises ReadRefused if the disk refuses to read, and OSError if it refuses to write.
    """
    unsynced_from = rewrite_from if rewrite_from != ALL_SYNCED else segment.size
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
    """Return the last indexed record at or before `offset`, or the segment's start."""
    index = segment.index
    if index is not None:
        for place in range(len(index) - 1, -1, -1):
            if index.offsets[place] <= offset:
                return Start(index.sequences[place], index.offsets[place])
    return Start(segment.base, 0)
