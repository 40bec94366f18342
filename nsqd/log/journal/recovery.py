"""Recovery of the journal: finds its files, reads their changes, and reports damage.

nsqd/broker/journal_replay.py rebuilds the channels from these changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nsqd.log.damage import Damage
from nsqd.log.data_path import JOURNAL_PREFIX, is_journal
from nsqd.log.journal.format import JournalFrame
from nsqd.log.journal.reader import LOST, BadBytes, walk_frames
from nsqd.log.journal.rotation import note_rotation
from nsqd.log.reading.cold import copy_aside
from nsqd.log.reading.refusals import ReadRefused, opened_to_read

if TYPE_CHECKING:
    from nsqd.broker.store import Entry
    from nsqd.log.files import Files


def journal_name(number: int) -> str:
    return f"{JOURNAL_PREFIX}{number:06}"


def journal_path(folder: Path, number: int) -> Path:
    return folder / journal_name(number)


def journal_numbers(files: Files, folder: Path) -> list[int]:
    """Return the numbers of the journal's files, ascending."""
    return sorted(int(name.removeprefix(JOURNAL_PREFIX)) for name in files.names_in(folder) if is_journal(name))


@dataclass(slots=True)
class JournalContents:
    """The condition of a journal, which is known only after you have read all its changes."""

    damage: list[Damage] = field(default_factory=list)
    is_whole: bool = True

    def report_missing(self, number: int, why: str) -> None:
        self.is_whole = False
        text = f"the journal is incomplete or an older copy: {why}"
        self.damage.append(Damage("", journal_name(number), 0, 0, 0, "", text))


class JournalRecovery:
    """Reads all files of a journal, cuts off a torn tail, and notes damage in `contents`."""

    def __init__(self, files: Files, folder: Path, contents: JournalContents) -> None:
        self.numbers = journal_numbers(files, folder)
        self.size = 0  # of the last file, once everything is read
        self.has_bad_bytes = False  # damage that stays in a file: every start reports it until a rotation replaces it
        self._files = files
        self._folder = folder
        self._contents = contents

    def changes(self) -> Iterator[Sequence[Entry]]:
        """Yield all changes, frame by frame, with LOST in place of damaged ones.

        The oldest file must contain every snapshot that it announces. If it lacks one, an older file is missing,
        because a rotation removes the older files only after the last snapshot.
        """
        numbers = self.numbers
        for number in numbers:
            missing: set[str] = set()
            for changes in self._read_file(journal_path(self._folder, number), is_last=number == numbers[-1]):
                if number == numbers[0]:
                    note_rotation(changes, missing)
                yield changes
            if missing and self._contents.is_whole:
                self._contents.report_missing(number - 1, f"no snapshot of {', '.join(sorted(missing))}")

    def _read_file(self, path: Path, *, is_last: bool) -> Iterator[Sequence[Entry]]:
        with opened_to_read(self._files, path) as read:
            size = self._files.size_of(path)
            for found in walk_frames(read, size):
                if isinstance(found, JournalFrame):
                    yield found.changes
                    continue
                self._set_aside(path, found)
                if found.is_tail:
                    size = found.position
                else:
                    self.has_bad_bytes = True
                    yield [(LOST, "")]
        if is_last and size < self._files.size_of(path):
            self._truncate(path, size)
        self.size = size

    def _set_aside(self, path: Path, bad: BadBytes) -> None:
        word = "torn" if bad.is_tail else "damaged"
        try:
            kept = copy_aside(self._files, path, word, bad.position, bad.end)
        except ReadRefused:  # don't cut bytes we couldn't copy because we couldn't read them
            raise
        except OSError:  # but if there is no space for the copy, start anyway
            kept = None
        text = f"{word}: skipping {bad.end - bad.position} bytes of the journal"
        self._contents.is_whole = False
        self._contents.damage.append(Damage("", path.name, bad.position, 0, 0, str(kept) if kept else "", text))

    def _truncate(self, path: Path, size: int) -> None:
        descriptor = self._files.open_to_write(path)
        try:
            self._files.truncate(descriptor, size)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
