"""Why a log takes no messages now, when the disk is tried again, and what has to be proven of the log before that.

A failed write may have left half a record behind the end of the file. After a failed sync, the kernel may have forgotten
bytes that it had taken. So before anything is appended, what is in doubt is read again, and compared with its checksums.
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

NOTHING: Final = -1  # no offset, in place of `rewrite_from`: everything was synced
RETRY_AFTER: Final = 1.0  # seconds from a failure until the disk is tried again


class LogFault(StorageFault):
    """The failure of one log, from the first error until a write succeeds. May touch nothing but the list of faults.

        OK ──begin──> broken ──a second later: is_due──> the log reads its end again ──proven──> broken, but written to
        OK <──end── the first write that goes well <────────────────────────────────────────────────────────┘

    Each failure on the way restarts the second, but not the time for which a refused read is waited for.
    """

    def __init__(self, topic: str, folder: Path, unsynced: Unsynced, faults: Faults, now: Callable[[], float]) -> None:
        super().__init__(faults, FaultKind.LOG)
        self.topic = topic  # and not the log, which the garbage collector would have to find when the topic is deleted
        self.folder = folder
        self._unsynced = unsynced
        self.identity_is_unsaved = False  # the disk did not take the log.json that says which log the folder is
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
    def names_may_be_lost(self) -> bool:
        """Whether a name in the folder may not be durable, and the sync that is beginning does not take the folder."""
        return bool(self._unsynced.folders)

    @property
    def needs_proof(self) -> bool:
        """Whether the end of the log has to be read again before anything is appended."""
        return self._retry_at != 0.0

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last failure to try the disk again."""
        return self._now() >= self._retry_at

    @property
    def is_lasting(self) -> bool:
        """Whether it is time to give up on bytes that the disk refuses to read, and to publish behind them."""
        return self._now() - self._began_at >= READ_PATIENCE

    def proven(self) -> None:
        self._retry_at = 0.0

    def end(self) -> None:
        self._retry_at = 0.0
        super().end()


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
