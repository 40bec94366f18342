"""Tracks the unsynced part of a log and the publishers that wait for its sync, and performs that sync."""

from __future__ import annotations

import os
from bisect import bisect_right
from errno import ENOENT
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING

from nsqd.log.data_path import LOG_JSON
from nsqd.log.files import DiskError
from nsqd.log.segment import LOG_SUFFIX, save_index

if TYPE_CHECKING:
    from pathlib import Path

    from nsqd.broker.batch import Batch, Receipt
    from nsqd.log.files import Files
    from nsqd.log.log_state import LogState
    from nsqd.log.segment import Segment
    from nsqd.log.segment_list import SegmentList


class Unsynced:
    """The files and folders that the next sync of a log has to cover, and the checkpoint of the last one.

    It opens no files. The syncer gets a job from `begin_sync` and performs it in a thread, and then the log reports the
    result with `synced` or `failed`. Touches its own lists, and each segment's count of saved index entries.
    """

    def __init__(self, folder: Path, state: LogState) -> None:
        # (base of a segment, offset in it, sequence): everything before this position survives a power cut.
        self.checkpoint = state.synced
        self.files: list[Path] = list(state.unsynced_files)  # in the order in which they were written
        self.folders: list[Path] = list(state.unsynced_folders)
        self.has_failed = False  # a sync has failed, and we haven't checked the data that it covered
        self.is_awaited = False  # a publisher is waiting for the next sync
        self._folder = folder
        self._sealed_indexes: list[Segment] = []  # sealed segments with index entries that aren't in a file yet
        # Ascending. This is a list because an empty deque takes 600 bytes, and most topics have no waiting publisher.
        self._receipts: list[tuple[int, Receipt]] = []

    @property
    def synced_tail(self) -> int:
        """Everything before this sequence survives a power cut."""
        _, _, sequence = self.checkpoint
        return sequence

    def add_new_folder(self) -> None:
        """Include a new folder in the next sync, even if the last sync did: it may have found no folder there."""
        self.files = [self._folder / LOG_JSON]
        self.folders = [self._folder, self._folder.parent]

    def rolled(self, sealed: Segment | None) -> None:
        """Include a new segment's name in the next sync. `sealed` is the segment that was active before.

        The old segment is synced before the new one. So if messages are missing between them after a restart, that's
        real damage, and not just the end of a log that wasn't synced.
        """
        if sealed is not None:
            if sealed.path not in self.files:
                self.files.append(sealed.path)
            self._sealed_indexes.append(sealed)
        if self._folder not in self.folders:
            self.folders.append(self._folder)

    def forget(self, gone: list[Segment]) -> None:
        """Forget the indexes of removed segments. Their files stay listed: `error_of` finds out why they're missing."""
        self._sealed_indexes = [segment for segment in self._sealed_indexes if segment not in gone]

    def add_receipts(self, batches: list[Batch], receipts: list[Receipt]) -> None:
        """Settle these receipts, one per batch, when the batches are synced."""
        self._receipts.extend([(batch.end_sequence, receipt) for batch, receipt in zip(batches, receipts, strict=True)])
        self.is_awaited = bool(self._receipts)

    def take_receipts(self) -> list[Receipt]:
        """Remove and return the receipts of all publishers that wait for a sync."""
        taken, self._receipts = self._receipts, []
        self.is_awaited = False
        return [receipt for _, receipt in taken]

    def begin_sync(self, segments: SegmentList) -> LogSync:
        """Return a job that makes everything written so far durable."""
        active = segments.active
        job = LogSync(
            self._folder,
            files=self.files,
            folders=self.folders,
            base=active.base if active is not None else 0,
            offset=active.size if active is not None else 0,
            sequence=segments.tail,
        )
        if active is not None:
            if active.path not in job.files and (active.base, active.size) != self.checkpoint[:2]:
                job.files.append(active.path)
            job.indexes = [entries for segment in (*self._sealed_indexes, active) if (entries := _unsaved(segment))]
        self.files = []
        self.folders = []
        self._sealed_indexes = []
        return job

    def error_of(self, job: LogSync, segments: SegmentList) -> DiskError | None:
        """Return why the job failed, or None if everything in it is durable.

        A missing file is fine if the log itself has removed it. Otherwise someone else has removed or moved it, so we
        can't be sure that any of our data is on disk.
        """
        if job.error is not None or segments.active is None:  # without a segment there's no data to lose
            return job.error
        present = {segment.path for segment in segments}
        for path in job.missing:
            was_released = path.suffix == LOG_SUFFIX and path not in present
            if not was_released:
                return DiskError.of("fsync", path, FileNotFoundError(ENOENT, os.strerror(ENOENT)))
        return None

    def failed(self, job: LogSync) -> None:
        """Put everything in the job back into the next sync. Before that sync, the log has to verify its data."""
        self.files = [*job.files, *[path for path in self.files if path not in job.files]]
        self.folders = [*job.folders, *[folder for folder in self.folders if folder not in job.folders]]
        self.has_failed = True

    def synced(self, job: LogSync) -> bool:
        """Advance the checkpoint and settle the receipts before it. Return whether there were any receipts."""
        self.checkpoint = job.base, job.offset, job.sequence
        waiting = self._receipts
        count = bisect_right(waiting, job.sequence, key=itemgetter(0))
        settled, self._receipts = waiting[:count], waiting[count:]
        self.is_awaited = bool(self._receipts)
        for _, receipt in settled:
            receipt.settle()
        return bool(settled)


def _unsaved(segment: Segment) -> tuple[Path, bytes, int] | None:
    """Return the index entries to save with the next sync, or None if there are none, and mark them as saved."""
    index = segment.index
    if index is None or index.saved == len(index):
        return None
    entries = (segment.index_path, index.encode_unsaved(), index.saved)
    index.saved = len(index)
    return entries


class LogSync:
    """The job of syncing one log. The log creates it, a thread performs it, and `DiskLog.end_sync` applies the result.

    If a file is missing, the topic may have been deleted, retention may have removed the file, or someone may have
    moved the data path away. Only the log can tell which, so the job just lists the file in `missing`.
    """

    def __init__(
        self, folder: Path, *, files: list[Path], folders: list[Path], base: int, offset: int, sequence: int
    ) -> None:
        self.folder = folder  # the log's own folder; all logs share the other ones
        self.files = files  # in the order in which they were written
        self.folders = folders
        self.indexes: list[tuple[Path, bytes, int]] = []  # path, entries to append, number of entries in the file
        self.base = base  # of the active segment
        self.offset = offset  # the end of the active segment
        self.sequence = sequence  # once the job is done, everything before this is durable
        self.error: DiskError | None = None
        self.missing: list[Path] = []

    def perform(self, files: Files, common: CommonFolders) -> None:
        for path, data, saved in self.indexes:
            try:
                save_index(files, path, data, saved=saved)
            except OSError:  # never mind, readers can rebuild the index
                pass
        folders = [(files.sync_folder if path == self.folder else common.sync, path) for path in self.folders]
        for sync, path in [(files.sync_path, path) for path in self.files] + folders:
            try:
                sync(path)
            except FileNotFoundError:
                self.missing.append(path)
            except OSError as error:
                self.error = DiskError.of("fsync", path, error)
                return


class CommonFolders:
    """The folders that logs share. In each sync, the first thread that needs one syncs it for all logs."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = Lock()
        self._errors: dict[Path, OSError | None] = {}

    def sync(self, folder: Path) -> None:
        """Sync the folder unless another log already has. If that failed, raise the same OSError again."""
        with self._lock:
            if folder not in self._errors:
                self._errors[folder] = self._sync(folder)
        if (error := self._errors[folder]) is not None:
            raise error

    def _sync(self, folder: Path) -> OSError | None:
        try:
            self._files.sync_folder(folder)
        except OSError as error:
            return error
        return None
