"""What is about to be removed: files whose messages are all finished, and the folders of deleted logs.

`Expiry` decides which segments go, and `Carrying` which side files; here they wait for a sync that may unlink them.

Nothing is removed before the journal's reason for it is synced, so removals are part of syncs (see sync.py):

    finished file ─► its folder's names are synced ─────────────► removed
    deleted log ─► renamed ─► the journal knows ─► name is synced ─► folder removed
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

    May touch the file system, its own faults, and its part of a sync.
    """

    def __init__(self, data_path: DataPath, files: Files, faults: Faults, wake_syncer: Callable[[], object]) -> None:
        """`wake_syncer` is called when the next sync has something to remove."""
        self.gone: dict[str, str] = {}  # log ids and topics of deleted logs whose folder's new name is not durable yet
        self._dropping = StorageFault(faults, FaultKind.DROPPING)
        self._removal = StorageFault(faults, FaultKind.REMOVAL)
        self._wake_syncer = wake_syncer
        self._error: DiskError | None = None  # why something could not be removed
        self._rename_error: DiskError | None = None  # why a deleted log still has its name
        self._data_path = data_path
        self._disk = files
        self._files: list[Path] = []
        self._leaving: set[Path] = set()  # all files that are to be removed, also those that a sync has taken
        self._folders: list[Path] = []
        self._unmoved: dict[str, str] = {}  # the part of `gone` whose folders could not be renamed
        self._renamed = False  # whether folders were renamed since the last sync began

    def remove(self, paths: list[Path]) -> None:
        self._files += paths
        self._leaving.update(paths)
        self._wake_syncer()

    def is_leaving(self, path: Path) -> bool:
        """Return whether this file is about to be removed. False if that fails now: waiting would not help."""
        return path in self._leaving and self._error is None

    def adopt(self, folders: list[Path]) -> None:
        """Take over the folders that an earlier process did not get to remove."""
        self._folders = folders

    def let_go(self, topic: str, log_id: str) -> None:
        """Remove the folder of a deleted log.

        The journal knows that the log is gone. So it does not come back, whether its folder is renamed now or later.
        """
        self.gone[log_id] = topic
        self._rename(topic, log_id)
        self._tell_faults()
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
        """Rename the folder; its files are removed in the background. Raises OSError."""
        self._data_path.check_place()
        target = self._data_path.new_dropped_folder()
        self._disk.rename(folder, target)
        self._folders.append(target)
        self._renamed = True
        self._wake_syncer()

    def try_again(self) -> None:
        """Rename the folders that could not be renamed before."""
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
            if found == log_id:  # otherwise the folder belongs to a new topic
                self._rename(topic, log_id)
        self._tell_faults()
        self._wake_syncer()

    def _tell_faults(self) -> None:
        for fault, error in ((self._dropping, self._rename_error), (self._removal, self._error)):
            if error is None:
                fault.end()
            else:
                fault.begin(error)

    def spare(self, folder: Path) -> None:
        """Forget the single files of this folder, as all of it goes: a new topic would have files of the same names."""
        self._files = [path for path in self._files if path.parent != folder]

    # What a sync takes, and brings back

    def begin_sync(self, sync: Sync, *, files_may_go: bool, doubtful: Collection[Path]) -> None:
        """Give the sync what may be removed. `doubtful`: folders whose newest files may not have durable names."""
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
        """Return whether files of logs are gone that were there when the sync began."""
        return len(sync.held) + len(sync.files) < sync.taken

    def end_sync(self, sync: Sync) -> None:
        error = sync.error or (sync.held_error if sync.held else None)
        if error is not None:
            self._error = error
        elif not (sync.held or sync.files or sync.folders):
            self._error = None
        self._files = sync.held + sync.files + self._files  # what could not be removed
        self._leaving.intersection_update(self._files)
        self._folders = sync.folders + self._folders
        if sync.renamed_in is not None:
            self._renamed = True
        else:
            for log_id in sync.gone:
                self.gone.pop(log_id, None)
        self._tell_faults()
