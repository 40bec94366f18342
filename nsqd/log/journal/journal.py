"""The change journal: one file for all topics. Changes are appended to it, and rotation makes it small again.

    journal.000007   ... changes ...                              (removed once 8 is complete and synced)
    journal.000008   changes | snapshot of a | changes | snapshot of b | changes ...

A snapshot replaces whatever the journal told of its topic before. So the two files together always hold the whole
state, and the new one alone holds it as soon as it has a snapshot of every topic that existed when the rotation began.

A small snapshot is one frame: `snapshot t`, changes. The snapshot of a topic with a million waiting messages would keep
the loop busy for seconds. So it comes in frames that take some milliseconds each, between frames of changes that happen
meanwhile:

    begin t | part t [...] | changes | part t [...] | changes | end t 2

Such a snapshot takes effect at its end, with the state of its beginning: the changes in between are applied after it.
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

MOST_UNWRITTEN: Final = 200_000  # changes that wait while the disk fails; if there are more, snapshots replace them

# Space that is reserved ahead of what is written, so that consumers can empty a full disk: segments are removed, and
# their space becomes free, only when the journal tells why. Ten changes a second of some hundred bytes each fill this
# in minutes, and each removed segment makes room for more. Once more than MOST_UNWRITTEN changes have waited, a rotation
# has to succeed first, and somebody else must free the space for it.
AHEAD: Final = 1024 * 1024
ASK_AGAIN_AFTER: Final = 64 * 1024  # bytes, if the disk had no space to reserve


@dataclass(slots=True)
class JournalSync:
    """What a sync does to make the journal durable."""

    files: list[Path]
    folder: Path | None
    obsolete: list[Path]  # to be removed after the sync
    rotated: bool
    whole: bool  # the files hold everything that was recorded before
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
            while self.obsolete:  # oldest first: a later file may tell the end of what an earlier one begins
                remove_file(disk, self.obsolete[0])
                del self.obsolete[0]
        except OSError as error:  # snapshots replace what the file holds; the next rotation tries again
            log.warning("cannot tidy up error=%s", error_text("remove", self.obsolete[0], error))


class Journal:
    """Appends changes to the newest file, and begins a new file when that is due.

    May touch the journal's files. `JournalRotation` decides what a rotation writes; others decide when to write and to sync
    (keeper.py).

    `error` is set, and publishing is refused, from a failure until none of these is true any more. A new file that
    cannot be made also sets it, until the next write or sync succeeds.

        a write has failed          until a later write takes the changes that wait
        the journal is distrusted   until everything is written and synced once
        changes were lost           until a new file has snapshots of all topics: the changes of a failed sync may be
                                    nowhere, and so are those that were dropped because too many waited
    """

    def __init__(
        self,
        folder: Path,
        files: Files,
        *,
        on_waiting: Callable[[], None],
        on_written: Callable[[], None],
    ) -> None:
        """`on_waiting`: changes begin to wait for a write. `on_written`: the journal needs a sync."""
        self.urgent = False  # a waiting change must be written in this turn
        self.size = 0
        self.error: DiskError | None = None
        self.synced_end = JournalEnd()
        self._folder = folder
        self._files = files
        self._on_waiting = on_waiting
        self._on_written = on_written
        self._number = 0  # of the newest file; 0: there is none
        self._path = folder  # of the newest file, once there is one
        self._descriptor = -1  # of the newest file, if it is open
        self._allocate_at = 0  # size of the file at which more space is reserved
        self._write_failed = False  # changes still wait that a write should have taken
        self._is_unproven = False  # set by `distrust`, until everything is synced
        # Changes were lost: a sync has failed, or too many waited. Only a full set of snapshots mends that, no later sync.
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
        """Record changes that are worth writing, but do not need a sync."""
        self._changes += changes

    @property
    def waiting(self) -> int:
        """How many changes are not written yet."""
        return len(self._changes)

    @property
    def is_synced(self) -> bool:
        """Whether everything that was recorded is on disk, what was recorded quietly as well."""
        return not self._changes and self.end == self.synced_end

    def write(self) -> bool:
        """Write all waiting changes in one go. Return False if that failed; they wait for the next call then."""
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
        """Drop the waiting changes if there are too many; the next snapshots replace them."""
        if len(self._changes) > MOST_UNWRITTEN:
            self._changes.clear()
            self._only_quiet = True
            self.has_lost = True
            self._rotation.need()

    def needs_sync(self) -> None:
        """Have the next sync take everything that is written by then, also what was recorded quietly."""
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
        """Clear the error when everything that was in doubt is in the file."""
        if not (self._write_failed or self._rotation.is_due or self._is_unproven):
            self.error = None

    def distrust(self, error: DiskError) -> None:
        """Set the journal's error, until all that waits now is written and synced."""
        self.error = error
        self._is_unproven = True
        self.needs_sync()

    def _allocate(self, size: int = AHEAD) -> bool:
        """Reserve space behind the end of the file. Return False if the disk has too little."""
        self._allocate_at = self.size + AHEAD // 2
        try:
            self._files.allocate(self._descriptor, self.size, size)
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # otherwise the file system cannot reserve space
            self._allocate_at = self.size + ASK_AGAIN_AFTER if is_full else sys.maxsize
            return not is_full
        return True

    def _cut_back(self) -> None:
        self._allocate_at = 0  # truncating gives up the reserved space as well
        try:
            if self._descriptor >= 0:
                self._files.truncate(self._descriptor, self.size)
        except OSError:  # the next write goes to the same place anyway
            pass

    # Files

    def _go_to(self, number: int) -> None:
        """Write to the file of this number from now on."""
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
        """Read everything, cut off a torn tail, and go on writing where the last file ends.

        All of that is done, and `contents` is complete, only when the last change has been taken from the iterator.
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
            self._folder_is_new = True  # the machine may have stopped before a new file's name was synced

    @property
    def end(self) -> JournalEnd:
        """Where the journal ends now."""
        return JournalEnd(self._number, self.size)

    # JournalRotation

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
            self.needs_sync()  # or nothing would sync what was recorded quietly in this file
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
        """The topic whose snapshot is being written, or comes next."""
        return self._rotation.next_topic

    def write_next_snapshot(self, snapshot: Callable[[str], Iterable[Entry | None]]) -> bool:
        """Write one topic's state, or a piece of it, behind the changes that led to it. Return False if that failed.

        `snapshot` returns the state as of its call, whatever happens while its changes are taken.
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
        """Take back a sync.

        After a failed sync nothing in the file can be relied on: everything is written again, to another file.
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
        self._rotation.replaced = sync.obsolete + self._rotation.replaced  # files that could not be removed
