"""What has to be done to make a log durable, as a job for a thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from nsqd.log.files import Files, error_text
from nsqd.log.segment import save_index

if TYPE_CHECKING:
    from pathlib import Path


class CommonFolders:
    """Folders that many logs of a round want synced. The first thread that asks for one syncs it, once for all logs."""

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


@dataclass(slots=True)
class LogSync:
    """Taken from a log by `begin_sync`, performed in a thread, and given back to the log with `end_sync`.

    A missing file may have been removed meanwhile by the deletion of the topic or by retention, or somebody may have
    moved the data path away. Only the log can tell which.
    """

    folder: Path  # the log's own; the other folders are shared by all logs
    files: list[Path]  # in the order in which they were written
    folders: list[Path]
    indexes: list[tuple[Path, bytes, int]]  # path, entries to add, how many entries the file has
    base: int  # of the active segment
    offset: int  # in the active segment
    sequence: int  # everything before this is durable when the job is done
    error: str | None = None
    missing: list[Path] = field(default_factory=list)

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
                self.error = error_text("fsync", path, error)
                return
