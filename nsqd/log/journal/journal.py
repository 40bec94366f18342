"""The journal: one file of changes for all topics. We append to it, and a rotation replaces it when it's too large.

    journal.000007   ... changes ...                              (removed once 8 is complete and synced)
    journal.000008   changes | snapshot of a | changes | snapshot of b | changes ...

A snapshot replaces all earlier changes of its topic. So the two files together always have the whole state. The new
file alone has it as soon as it has a snapshot of every topic that existed when the rotation began.

A small snapshot is one frame: `snapshot t`, changes. For a topic with a million waiting messages, one frame would keep
the loop busy for seconds. So we write it in several frames that take a few milliseconds each. Between them we write
the changes that happen in the meantime:

    begin t | part t [...] | changes | part t [...] | changes | end t 2

Such a snapshot takes effect at its end, but with the state of its beginning: the changes in between apply on top of it.
Without an end it has no effect.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.log.data_path import JournalEnd
from nsqd.log.files import DiskError, Files, close_quietly, error_text, remove_file
from nsqd.log.journal import format as journal_format
from nsqd.log.journal.recovery import JournalContents, JournalRecovery, journal_path
from nsqd.log.journal.rotation import JournalRotation

if TYPE_CHECKING:
    from nsqd.broker.store import Entry

log = logging.getLogger(__name__)

MOST_UNWRITTEN: Final = 200_000  # changes that may wait while the disk fails; beyond that, snapshots replace them

# Space that we reserve after the end of the file, so that consumers can free space on a full disk. To remove a segment,
# we first have to write to the journal that it's finished. At ten changes a second of a few hundred bytes each, this
# lasts for minutes, and each removed segment makes room for more. It's not enough once more than MOST_UNWRITTEN changes
# are waiting: then a rotation has to succeed first, and someone else has to free the space for it.
AHEAD: Final = 1024 * 1024
ASK_AGAIN_AFTER: Final = 64 * 1024  # bytes to write before we try again, if there was no space to reserve


@dataclass(slots=True)
class JournalSync:
    """The journal's part of a sync: a job for a thread."""

    files: list[Path]
    folder: Path | None
    obsolete: list[Path]  # files to remove after the sync
    rotated: bool
    whole: bool  # the files have everything that was recorded before
    end: JournalEnd
    error: DiskError | None = None

    def perform(self, disk: Files) -> None:
        path = self.folder
        try:
            for path in self.files:
                disk.sync_path(path)
            if self.folder is not None:
                path = self.folder
                disk.sync_folder(path)
        except OSError as error:
            self.error = DiskError.of("fsync", path or "", error)
            return
        try:
            while self.obsolete:  # oldest first, because a later file may have the end of something in an earlier one
                remove_file(disk, self.obsolete[0])
                del self.obsolete[0]
        except OSError as error:  # harmless, because newer snapshots replace the file; the next rotation tries again
            log.warning("failed to remove an old journal file error=%s", error_text("remove", self.obsolete[0], error))


class Journal:
    """Appends changes to the newest file, and begins new files.

    Touches only the journal's files. `JournalRotation` decides what a rotation writes, keeper.py when to write, and
    the syncer when to sync.

    While `error` is set, we refuse publishes. A failure sets it, and it stays until none of these is true:

        a write has failed          until a later write has written the waiting changes
        the journal is distrusted   until everything is written and synced once
        changes were lost           until a new file has snapshots of all topics; after a failed sync its changes may
                                    be lost, and so are changes that were dropped because too many were waiting

    A failure to create a new file sets it too, until the next write or sync succeeds.
    """

    def __init__(
        self,
        folder: Path,
        files: Files,
        *,
        on_waiting: Callable[[], None],
        on_written: Callable[[], None],
    ) -> None:
        """Set up the journal. It calls `on_waiting` when changes need a write, `on_written` when they need a sync."""
        self.urgent = False  # some waiting change has to be written in this turn
        self.size = 0
        self.error: DiskError | None = None
        self.synced_end = JournalEnd()
        self._folder = folder
        self._files = files
        self._on_waiting = on_waiting
        self._on_written = on_written
        self._number = 0  # of the newest file; 0 if there is none
        self._path = folder  # of the newest file, once there is one
        self._descriptor = -1  # of the newest file, if it's open
        self._allocate_at = 0  # the file size at which we reserve more space
        self._write_failed = False  # a write has failed, and its changes are still waiting
        self._is_unproven = False  # set by `distrust`, until everything is synced
        # Changes were lost, because a sync failed or too many were waiting. A later sync can't bring them back, but a
        # full set of snapshots can.
        self.has_lost = False
        self._changes: list[Entry] = []
        self._only_quiet = True
        self._to_sync: list[Path] = []
        self._folder_is_new = False
        self._rotation = JournalRotation()

    # Recording

    def record(self, change: Entry, *, urgent: bool) -> None:
        if urgent:
            self.urgent = True
        elif self._only_quiet:
            self._on_waiting()
        self._only_quiet = False
        self._changes.append(change)

    def record_quietly(self, changes: Iterable[Entry]) -> None:
        """Record changes that go along with the next write. They don't cause a write or a sync themselves."""
        self._changes += changes

    @property
    def waiting(self) -> int:
        """How many changes aren't written yet."""
        return len(self._changes)

    @property
    def is_synced(self) -> bool:
        """Whether all recorded changes are on disk, including quiet ones."""
        return not self._changes and self.end == self.synced_end

    def write(self) -> bool:
        """Write all waiting changes in one go. If that fails, return False and keep them for the next call."""
        changes = self._changes
        if not changes:
            self.urgent = False
            return True
        if not self._append([journal_format.encode(changes)]):
            self.bound_waiting()
            return False
        self._changes = []
        self.urgent = False
        only_quiet, self._only_quiet = self._only_quiet, True
        if not only_quiet or self._is_unproven:
            self.needs_sync()
        return True

    def bound_waiting(self) -> None:
        """Drop the waiting changes if there are too many. The next snapshots replace them."""
        if len(self._changes) > MOST_UNWRITTEN:
            self._changes.clear()
            self._only_quiet = True
            self.has_lost = True
            self._rotation.need()

    def needs_sync(self) -> None:
        """Request a sync. It covers everything written before it begins, even quiet changes."""
        if not self._number:
            return
        if self._path not in self._to_sync:
            self._to_sync.append(self._path)
        self._on_written()

    def _append(self, frames: list[bytes]) -> bool:
        try:
            if self._descriptor < 0:
                self._open()
            self._files.write_fully(self._descriptor, frames, self.size)
        except OSError as error:
            self.error = DiskError.of("write", self._path, error)
            self._write_failed = True
            self._cut_back()
            return False
        self.size += sum(map(len, frames))
        self._write_failed = False
        if self.error is not None:
            self._heal()
        if self.size >= self._allocate_at:
            self._allocate()
        return True

    def _heal(self) -> None:
        """Clear the error if there's no reason left for it."""
        if not (self._write_failed or self._rotation.is_due or self._is_unproven):
            self.error = None

    def distrust(self, error: DiskError) -> None:
        """Set the journal's error until all waiting changes are written and synced."""
        self.error = error
        self._is_unproven = True
        self.needs_sync()

    def _allocate(self, size: int = AHEAD) -> bool:
        """Reserve space after the end of the file. Return False if the disk is full."""
        self._allocate_at = self.size + AHEAD // 2
        try:
            self._files.allocate(self._descriptor, self.size, size)
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # if not, the file system doesn't support this
            self._allocate_at = self.size + ASK_AGAIN_AFTER if is_full else sys.maxsize
            return not is_full
        return True

    def _cut_back(self) -> None:
        self._allocate_at = 0  # truncating frees the reserved space as well
        try:
            if self._descriptor >= 0:
                self._files.truncate(self._descriptor, self.size)
        except OSError:  # the next write overwrites these bytes anyway
            pass

    # Files

    def _go_to(self, number: int) -> None:
        """Use the file of this number from now on."""
        self._number = number
        self._path = journal_path(self._folder, number)

    def _open(self) -> None:
        if self._number == 0:
            self._go_to(1)
            self._folder_is_new = True
        self._descriptor = self._files.open_to_write(self._path)
        self._allocate_at = 0

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close_quietly(self._files, descriptor)

    # Recovery

    def recover(self, contents: JournalContents) -> Iterator[Entry]:
        """Read everything, cut off a torn tail, and continue at the end of the last file.

        That's all done lazily: you have to exhaust the iterator, and only then is `contents` complete.
        """
        return chain.from_iterable(self._recover(contents))

    def _recover(self, contents: JournalContents) -> Iterator[Sequence[Entry]]:
        recovery = JournalRecovery(self._files, self._folder, contents)
        yield from recovery.changes()
        numbers = recovery.numbers
        if numbers:
            self._go_to(numbers[-1])
            self.size = recovery.size
            self._rotation.recovered(
                self.size,
                [journal_path(self._folder, number) for number in numbers[:-1]],
                is_due=recovery.has_bad_bytes or len(numbers) > 1,
            )
            self._to_sync = [journal_path(self._folder, number) for number in numbers]
            self._folder_is_new = True  # the last process may have ended before it synced the name of a new file

    @property
    def end(self) -> JournalEnd:
        """The current end of the journal."""
        return JournalEnd(self._number, self.size)

    # Rotation

    @property
    def wants_rotation(self) -> bool:
        return self._rotation.is_wanted(self.size)

    @property
    def is_rotating(self) -> bool:
        return self._rotation.lacks_snapshots

    def start_rotation(self, topics: Iterable[str]) -> bool:
        """Begin a new file, which will get snapshots of these topics. Return False if that failed."""
        self.write()
        if not self.has_lost:
            self.needs_sync()  # or no sync would ever cover the quiet changes in the old file
        old, old_path, old_descriptor, old_size = self._number, self._path, self._descriptor, self.size
        self._descriptor = -1
        self._go_to(old + 1)
        self.size = 0
        try:
            self._open()
            self._files.truncate(self._descriptor, 0)
        except OSError as error:
            self.error = DiskError.of("open", self._path, error)
            self.close()
            self._go_to(old)
            self._descriptor, self.size = old_descriptor, old_size
            return False
        if self.error is None and not self._allocate(AHEAD + self._rotation.size_after):
            self.close()
            with suppress(OSError):
                remove_file(self._files, self._path)
            self._go_to(old)
            self._descriptor, self.size = old_descriptor, old_size
            self._rotation.put_off(self.size + ASK_AGAIN_AFTER)
            return False
        if old_descriptor >= 0:
            close_quietly(self._files, old_descriptor)
        self._write_failed = bool(self._changes)
        self._folder_is_new = True
        self.record_quietly([self._rotation.begin(old_path, topics)])
        self.needs_sync()
        return True

    @property
    def next_topic(self) -> str:
        """The topic whose snapshot we're writing or will write next."""
        return self._rotation.next_topic

    def write_next_snapshot(self, snapshot: Callable[[str], Iterable[Entry | None]]) -> bool:
        """Write one topic's state, or a part of it, after the changes that led to it. Return False if that failed.

        `snapshot` has to return an iterator over the state at the time of the call. Changes that happen while we
        iterate must not show in it.
        """
        rotation = self._rotation
        if not self.write():
            rotation.start_anew()
            return False
        if not self._append([journal_format.encode(rotation.next_changes(snapshot))]):
            rotation.start_anew()
            return False
        rotation.written()
        self.needs_sync()
        return True

    # Syncing

    def begin_sync(self, *, also_quiet: bool = False) -> JournalSync | None:
        if also_quiet and self._descriptor >= 0:
            self._to_sync = [*self._to_sync, self._path]
        rotated = self._rotation.is_complete
        if not self._to_sync and not rotated:
            return None
        sync = JournalSync(
            files=self._to_sync,
            folder=self._folder if self._folder_is_new else None,
            obsolete=self._rotation.end(self.size) if rotated else [],
            rotated=rotated,
            whole=not self._write_failed,
            end=self.end,
        )
        self._to_sync = []
        self._folder_is_new = False
        return sync

    def end_sync(self, sync: JournalSync) -> None:
        """Apply the result of a sync.

        After a failed sync, we can't rely on anything in the file, so a rotation writes everything again to a new one.
        """
        if sync.error is not None:
            self.error = sync.error
            self.has_lost = True
            self._rotation.need()
            self._folder_is_new = self._folder_is_new or sync.folder is not None
        else:
            self.synced_end = sync.end
            self._is_unproven = self._is_unproven and not sync.whole
            if sync.rotated and not self._rotation.is_due:
                self.has_lost = False
            self._heal()
        self._rotation.replaced = sync.obsolete + self._rotation.replaced  # try to remove these again
