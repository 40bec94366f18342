"""What of a log has been written but not synced, which publishers wait for that, and how it is synced."""

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
    """What the next sync of a log has to cover, and what the last one has made durable.

    May touch nothing but its own lists, and of segments how much of their indexes is saved. It opens no file: a sync
    takes a job from `begin_sync`, performs it in a thread, and the log brings the job back with `synced` or `failed`.
    """

    def __init__(self, folder: Path, state: LogState) -> None:
        # (base of a segment, offset in it, sequence): everything before this place survives a power cut.
        self.checkpoint = state.synced
        self.files: list[Path] = list(state.unsynced_files)  # in the order in which they were written
        self.folders: list[Path] = list(state.unsynced_folders)
        self.has_failed = False  # a sync has failed, and what it should have made durable is not proven yet
        self.is_awaited = False  # a publisher waits for the next sync
        self._folder = folder
        self._sealed_indexes: list[Segment] = []  # sealed segments with entries that are not in the index's file
        # Ascending. A list, because an empty deque takes 600 bytes, and most topics have no publisher that waits.
        self._receipts: list[tuple[int, Receipt]] = []

    @property
    def synced_tail(self) -> int:
        """The sequence before which everything survives a power cut."""
        _, _, sequence = self.checkpoint
        return sequence

    def add_new_folder(self) -> None:
        """Sync the folder that was just made: a sync may have passed before there was anything to sync."""
        self.files = [self._folder / LOG_JSON]
        self.folders = [self._folder, self._folder.parent]

    def rolled(self, sealed: Segment | None) -> None:
        """Note that a new segment was begun, and which one was active before.

        The old segment is synced before the new one. So if a start finds a gap between them, that is real damage.
        """
        if sealed is not None:
            if sealed.path not in self.files:
                self.files.append(sealed.path)
            self._sealed_indexes.append(sealed)
        if self._folder not in self.folders:
            self.folders.append(self._folder)

    def forget(self, gone: list[Segment]) -> None:
        """Save no index of removed segments. Their files stay in the list; a sync that misses one asks why."""
        self._sealed_indexes = [segment for segment in self._sealed_indexes if segment not in gone]

    def add_receipts(self, batches: list[Batch], receipts: list[Receipt]) -> None:
        """Settle these receipts, one for each batch, when the batches are synced."""
        self._receipts.extend([(batch.end_sequence, receipt) for batch, receipt in zip(batches, receipts, strict=True)])
        self.is_awaited = bool(self._receipts)

    def take_receipts(self) -> list[Receipt]:
        """Take the receipts of all publishers that wait for a sync."""
        taken, self._receipts = self._receipts, []
        self.is_awaited = False
        return [receipt for _, receipt in taken]

    def begin_sync(self, segments: SegmentList) -> LogSync:
        """Take what has to be synced so that everything written so far is durable."""
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
        """Return why the job has made nothing durable; None: it has made everything durable.

        A missing file may have been removed by the log itself. Otherwise somebody else has removed or moved it. Then
        the file is not where it was written, and nothing is durable.
        """
        if job.error is not None or segments.active is None:  # without a segment nothing was written
            return job.error
        present = {segment.path for segment in segments}
        for path in job.missing:
            was_released = path.suffix == LOG_SUFFIX and path not in present
            if not was_released:
                return DiskError.of("fsync", path, FileNotFoundError(ENOENT, os.strerror(ENOENT)))
        return None

    def failed(self, job: LogSync) -> None:
        """Have everything in the job synced again, once it is proven."""
        self.files = [*job.files, *[path for path in self.files if path not in job.files]]
        self.folders = [*job.folders, *[folder for folder in self.folders if folder not in job.folders]]
        self.has_failed = True

    def synced(self, job: LogSync) -> bool:
        """Move the checkpoint, and settle the receipts before it. Return whether any receipt was settled."""
        self.checkpoint = job.base, job.offset, job.sequence
        waiting = self._receipts
        count = bisect_right(waiting, job.sequence, key=itemgetter(0))
        settled, self._receipts = waiting[:count], waiting[count:]
        self.is_awaited = bool(self._receipts)
        for _, receipt in settled:
            receipt.settle()
        return bool(settled)


def _unsaved(segment: Segment) -> tuple[Path, bytes, int] | None:
    """Take the index entries that are not in the index's file, for a LogSync."""
    index = segment.index
    if index is None or index.saved == len(index):
        return None
    entries = (segment.index_path, index.encode_unsaved(), index.saved)
    index.saved = len(index)
    return entries


class LogSync:
    """What makes one log durable. The log makes it, a thread performs it, and the log takes it back with `end_sync`.

    A missing file may have been removed meanwhile by the deletion of the topic or by retention, or somebody may have
    moved the data path away. Only the log can tell which.
    """

    def __init__(
        self, folder: Path, *, files: list[Path], folders: list[Path], base: int, offset: int, sequence: int
    ) -> None:
        self.folder = folder  # the log's own; the other folders are shared by all logs
        self.files = files  # in the order in which they were written
        self.folders = folders
        self.indexes: list[tuple[Path, bytes, int]] = []  # path, entries to add, how many entries the file has
        self.base = base  # of the active segment
        self.offset = offset  # in the active segment
        self.sequence = sequence  # everything before this is durable when the job is done
        self.error: DiskError | None = None
        self.missing: list[Path] = []

    def perform(self, files: Files, common: CommonFolders) -> None:
        for path, data, saved in self.indexes:
            try:
                save_index(files, path, data, saved=saved)
            except OSError:  # the index can always be made again
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
    """Folders that many logs want synced. The first thread that asks for one syncs it, once for all logs."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = Lock()
        self._errors: dict[Path, OSError | None] = {}

    def sync(self, folder: Path) -> None:
        """Sync the folder unless that was done. If that fails, every log that asks for it gets the same OSError."""
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
