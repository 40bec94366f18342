"""One sync, as a job for a thread: what is made durable together, and what is removed afterwards.

The syncer fills it on the loop, a thread performs it, and the syncer takes it back (syncer.py). A sync has a `LogSync` for
each log (writing/unsynced.py) and a `JournalSync` (journal/journal.py). While the thread is at work, the loop may only
call `Sync.spare`.
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
MANY_LOGS: Final = 32  # a sync of at least so many logs uses several threads


class Sync:
    """What one sync takes along, makes durable, and then removes.

    **Held files.** A finished file may only be removed when the names in its folder are on disk. Suppose a log has the
    segments A and B, both finished, and begins C; a disk that takes no more syncs keeps the folder's new entry for C in
    memory only. If A and B were removed now, and their removal reached the disk but the name of C did not, a power cut
    would leave an empty folder. The next start would not know how far the log had got: it would report that the log has
    lost everything, and number messages from 0 again. So files of a folder that is not synced are held back until a
    later sync has synced it: until then, their names tell how far the log had got.
    """

    def __init__(self, result: SyncResult) -> None:
        self.result = result
        self.jobs: list[LogSync] = []
        self.journal: JournalSync | None = None
        self.files: list[Path] = []  # to be removed, oldest first
        self.held: list[Path] = []  # to be removed only when their folder is synced
        self.taken = 0  # how many files both lists had at the beginning
        self.held_error: DiskError | None = None  # why a folder could not be synced
        self._removing = Lock()
        self.renamed_in: Path | None = None  # the folder in which dropped topics were renamed
        self.gone: dict[str, str] = {}  # their log ids and topics
        self.folders: list[Path] = []
        self.error: DiskError | None = None
        self.is_performed = False  # set by the sync's thread, with the exception if that has found a bug
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
        self._keep_files_of_unsynced_folders(files)
        while self._removes_one(files):
            pass
        if self.error is not None:
            return
        if self.renamed_in is not None:
            try:
                files.sync_folder(self.renamed_in)
            except OSError as error:  # the journal knows that they are gone
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
        """Sync many logs in several threads: a file system can join syncs that are requested at the same time."""
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

    def _keep_files_of_unsynced_folders(self, files: Files) -> None:
        """Hold back the files of folders that are not synced, because the newest name in them may still be lost."""
        errors = {job.folder: job.error for job in self.jobs if job.error is not None and job.folders}
        for folder in {path.parent for path in self.held}:
            try:  # a sync needs no space, so files can be removed even from a full disk
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

    def _removes_one(self, files: Files) -> bool:
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
        """Remove nothing in this folder from now on. Called on the loop, which waits for one removal at most."""
        with self._removing:
            self.files = [path for path in self.files if path.parent != folder]
            self.held = [path for path in self.held if path.parent != folder]


class SyncResult:
    """The result of one sync, for which calls of `Store.sync` wait."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: DiskError | None = None  # the journal's error
        self.log_errors: dict[str, DiskError] = {}  # by topic
        self.is_wanted = False  # a call of `Store.sync` waits for it

    def error_of(self, topics: Iterable[str]) -> DiskError | None:
        """Return why not everything that was recorded, or appended to these topics, is on disk; None: it is."""
        return self.error or next(
            (error for topic in topics if (error := self.log_errors.get(topic)) is not None), None
        )
