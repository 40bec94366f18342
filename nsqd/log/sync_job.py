"""What has to be done to make a log durable, as a thing that a thread can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqd.log.files import Files, error_text
from nsqd.log.segment import save_index

if TYPE_CHECKING:
    from pathlib import Path

    from nsqd.log.topic_log import DiskLog


@dataclass(slots=True)
class SyncJob:
    """Taken from a log by `begin_sync`, performed in a thread, given back with `end_sync`.

    A topic that is deleted meanwhile takes its files along; that is no failure.
    """

    log: DiskLog
    files: list[Path]  # in the order in which they were written
    folders: list[Path]
    indexes: list[tuple[Path, bytes, int]]  # path, entries to add, how many are there
    base: int  # of the active segment
    offset: int  # in it
    sequence: int  # everything before is durable when this is done
    error: str | None = None

    def perform(self, files: Files) -> None:
        for path, data, saved in self.indexes:
            try:
                save_index(files, path, data, saved=saved)
            except OSError:  # the index can always be made again
                pass
        steps = [(files.sync_path, path) for path in self.files] + [(files.sync_folder, path) for path in self.folders]
        for sync, path in steps:
            try:
                sync(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.error = error_text("fsync", path, error)
                return
