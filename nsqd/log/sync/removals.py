"""Removals: finished files and the folders of deleted logs, which wait here until a sync can remove them.

`Expiry` chooses the segments to remove, and `Compaction` the compacted files.

We remove a file only after the journal's reason for it is synced, so removals are part of a sync (see sync.py):

    finished file ─► the names in its folder are synced ────────► file removed
    deleted log ─► folder renamed ─► journal synced ─► new name synced ─► folder removed
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.files import DiskError, Files

if TYPE_CHECKING:
    from nsqd.log.data_path import DataPath
    from nsqd.log.faults import Faults
    from nsqd.log.sync.sync import Sync


class Removals:
    """Removes files and folders, step by step.

    Touches the file system, its own faults, and its part of a sync.
    """

    def __init__(self, data_path: DataPath, files: Files, faults: Faults, wake_syncer: Callable[[], object]) -> None:
        """Set up the lists. `wake_syncer` is called when there is something for the next sync to remove."""
        self.gone: dict[str, str] = {}  # id -> topic of deleted logs, until the folder's new name is synced
        self._dropping = StorageFault(faults, FaultKind.DROPPING)
        self._removal = StorageFault(faults, FaultKind.REMOVAL)
        self._wake_syncer = wake_syncer
        self._error: DiskError | None = None  # why a removal failed
        self._rename_error: DiskError | None = None  # why renaming a deleted log's folder failed
        self._data_path = data_path
        self._disk = files
        self._files: list[Path] = []
        self._leaving: set[Path] = set()  # all files to remove, including the ones in a running sync
        self._folders: list[Path] = []
        self._unmoved: dict[str, str] = {}  # the part of `gone` whose folders we couldn't rename
        self._renamed = False  # a folder was renamed since the last sync began

    def remove(self, paths: list[Path]) -> None:
        self._files += paths
        self._leaving.update(paths)
        self._wake_syncer()

    def is_leaving(self, path: Path) -> bool:
        """Return whether this file will be removed soon. While removals fail, return False: waiting wouldn't help."""
        return path in self._leaving and self._error is None

    def adopt(self, folders: list[Path]) -> None:
        """Take over the folders that an earlier process had renamed but not removed."""
        self._folders = folders

    def remove_log(self, topic: str, log_id: str) -> None:
        """Remove the folder of a deleted log.

        The journal already says that the log is gone, so it won't come back even if we can't rename its folder yet.
        """
        self.gone[log_id] = topic
        self._rename(topic, log_id)
        self._report_errors()
        self._wake_syncer()

    def _rename(self, topic: str, log_id: str) -> None:
        folder = self._data_path.topic_folder(topic)
        try:
            self.move_away(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._unmoved[log_id] = topic
            self._rename_error = DiskError.of("rename", folder, error)

    def move_away(self, folder: Path) -> None:
        """Rename the folder. Its files are removed in the background. Raises OSError."""
        self._data_path.refuse_if_moved()
        target = self._data_path.new_dropped_folder()
        self._disk.rename(folder, target)
        self._folders.append(target)
        self._renamed = True
        self._wake_syncer()

    def try_again(self) -> None:
        """Retry the renames that have failed."""
        self._rename_error = None
        unmoved, self._unmoved = self._unmoved, {}
        for log_id, topic in unmoved.items():
            folder = self._data_path.topic_folder(topic)
            try:
                found = self._data_path.read_log_id(folder)
            except OSError as error:
                self._unmoved[log_id] = topic
                self._rename_error = DiskError.of("read", folder, error)
                continue
            if found == log_id:  # otherwise it's already the folder of a new topic
                self._rename(topic, log_id)
        self._report_errors()
        self._wake_syncer()

    def _report_errors(self) -> None:
        for fault, error in ((self._dropping, self._rename_error), (self._removal, self._error)):
            if error is None:
                fault.end()
            else:
                fault.begin(error)

    def spare(self, folder: Path) -> None:
        """Forget individual files in this folder, because the whole folder will be removed.

        Otherwise we might remove files of a new topic of the same name, because they have the same paths.
        """
        self._files = [path for path in self._files if path.parent != folder]

    # Removals as part of a sync

    def begin_sync(self, sync: Sync, *, files_may_go: bool, doubtful: Collection[Path]) -> None:
        """Move everything that may be removed to the sync. The newest names in `doubtful` folders may not be synced."""
        if files_may_go:
            sync.files = [path for path in self._files if path.parent not in doubtful]
            sync.held = [path for path in self._files if path.parent in doubtful]
            self._files = []
        sync.taken = len(sync.held) + len(sync.files)
        sync.folders, self._folders = self._folders, []
        if self._renamed:
            self._renamed = False
            sync.renamed_in = self._data_path.topics
            sync.gone = {log_id: topic for log_id, topic in self.gone.items() if log_id not in self._unmoved}

    def has_removed(self, sync: Sync) -> bool:
        """Return whether the sync has removed files of logs."""
        return len(sync.held) + len(sync.files) < sync.taken

    def end_sync(self, sync: Sync) -> None:
        error = sync.error or (sync.held_error if sync.held else None)
        if error is not None:
            self._error = error
        elif not (sync.held or sync.files or sync.folders):
            self._error = None
        self._files = sync.held + sync.files + self._files  # the ones that the sync didn't remove
        self._leaving.intersection_update(self._files)
        self._folders = sync.folders + self._folders
        if sync.renamed_in is not None:
            self._renamed = True
        else:
            for log_id in sync.gone:
                self.gone.pop(log_id, None)
        self._report_errors()
