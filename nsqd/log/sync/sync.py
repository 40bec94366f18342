"""One sync, as a job for a thread: makes logs and journal durable together, and then removes files.

The syncer fills it on the loop, a thread performs it, and the syncer applies the result (syncer.py). A sync has a
`LogSync` for each log (writing/unsynced.py) and a `JournalSync` (journal/journal.py). While the thread is working on
it, the loop may only call `Sync.spare`.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

import trio

from nsqd.log.files import DiskError, Files, remove_file
from nsqd.log.writing.unsynced import CommonFolders

if TYPE_CHECKING:
    from nsqd.log.journal.journal import JournalSync
    from nsqd.log.writing.unsynced import LogSync

SYNCING_THREADS: Final = 4
MANY_LOGS: Final = 32  # from this number of logs on, a sync uses several threads


class Sync:
    """The data that one sync makes durable, and the files and folders that it removes afterwards.

    **Held files.** We may remove a finished file only when the names in its folder are on disk. For example, a log has
    the segments A and B, both finished, and begins C. Then syncs start to fail, so the folder's entry for C is only in
    memory. If we removed A and B now, their removal might reach the disk but not the name of C. After a power cut the
    folder would be empty, and the next start couldn't tell where the log's tail was. It would report that the log has
    lost everything, and number messages from 0 again. So we hold back the files of a folder until it's synced.
    """

    def __init__(self, result: SyncResult) -> None:
        self.result = result
        self.jobs: list[LogSync] = []
        self.journal: JournalSync | None = None
        self.files: list[Path] = []  # to remove, oldest first
        self.held: list[Path] = []  # to remove once their folder is synced
        self.taken = 0  # the number of files in both lists at the beginning
        self.held_error: DiskError | None = None  # why a folder couldn't be synced
        self._removing = Lock()
        self.renamed_in: Path | None = None  # the folder that has the renamed folders of deleted topics
        self.gone: dict[str, str] = {}  # id -> topic of their logs
        self.folders: list[Path] = []
        self.error: DiskError | None = None
        self.is_performed = False  # set by the thread at the end; `bug` is then the exception, if there was one
        self.bug: BaseException | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.jobs or self.journal or self.files or self.held or self.renamed_in or self.folders)

    def perform(self, files: Files) -> None:
        self._sync_logs(files)
        if self.journal is not None:
            self.journal.perform(files)
            if self.journal.error is not None:
                return
        self._hold_back_files(files)
        while self._remove_one(files):
            pass
        if self.error is not None:
            return
        if self.renamed_in is not None:
            try:
                files.sync_folder(self.renamed_in)
            except OSError as error:  # a later sync tries again; until then the journal says that the logs are gone
                self.error = DiskError.of("fsync", self.renamed_in, error)
                return
            self.renamed_in = None
        while self.folders:
            try:
                files.remove_folder(self.folders[0])
            except FileNotFoundError:
                pass
            except OSError as error:
                self.error = DiskError.of("remove", self.folders[0], error)
                return
            del self.folders[0]

    def _sync_logs(self, files: Files) -> None:
        """Sync the logs. For many logs, use several threads, because a file system can merge concurrent syncs."""
        common = CommonFolders(files)

        def sync(first: int, step: int) -> None:
            for job in self.jobs[first::step]:
                job.perform(files, common)

        if len(self.jobs) < MANY_LOGS:
            sync(0, 1)
            return
        with ThreadPoolExecutor(SYNCING_THREADS) as threads:
            for future in [threads.submit(sync, first, SYNCING_THREADS) for first in range(SYNCING_THREADS)]:
                future.result()

    def _hold_back_files(self, files: Files) -> None:
        """Hold back the files of folders whose names aren't synced. First try to sync the folders of held files."""
        errors = {job.folder: job.error for job in self.jobs if job.error is not None and job.folders}
        for folder in {path.parent for path in self.held}:
            try:  # this works on a full disk too, because a sync needs no space
                files.sync_folder(folder)
            except FileNotFoundError:
                pass
            except OSError as error:
                errors[folder] = DiskError.of("fsync", folder, error)
        with self._removing:
            finished = self.held + self.files
            self.held = [path for path in finished if path.parent in errors]
            self.files = [path for path in finished if path.parent not in errors]
            if self.held:
                self.held_error = errors[self.held[0].parent]

    def _remove_one(self, files: Files) -> bool:
        with self._removing:
            if not self.files:
                return False
            try:
                remove_file(files, self.files[0])
            except OSError as error:
                self.error = DiskError.of("remove", self.files[0], error)
                return False
            del self.files[0]
            return True

    def spare(self, folder: Path) -> None:
        """Remove no more files in this folder. Call this on the loop; it waits for at most one removal."""
        with self._removing:
            self.files = [path for path in self.files if path.parent != folder]
            self.held = [path for path in self.held if path.parent != folder]


class SyncResult:
    """The result of one sync, for the calls of `Store.sync` that wait for it."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: DiskError | None = None  # the journal's error
        self.log_errors: dict[str, DiskError] = {}  # by topic
        self.is_wanted = False  # a call of `Store.sync` is waiting for it

    def error_of(self, topics: Iterable[str]) -> DiskError | None:
        """Return the error of the journal or of one of these topics, or None if all of them are synced."""
        return self.error or next(
            (error for topic in topics if (error := self.log_errors.get(topic)) is not None), None
        )
