"""Removes files from a table's folder that no commit has tried to name.

A commit that failed may have succeeded all the same: its answer was lost, or its request is still on its way and
reaches the store later. So once a commit has tried to name a file, the log as it is *now* doesn't prove that the file
is unused; removing it might damage the table. We only remove files that no commit has tried to name. All others are
left to upkeep, which waits until their lease has long expired (`lease`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from pyarrow.fs import FileSystem

from pyspark_nsq.tables.files import DataFile


class Unnamed:
    """Finished files of one table. Leaving the block removes them, unless a commit was tried in it."""

    def __init__(self, filesystem: FileSystem, root: str, files: Iterable[DataFile]) -> None:
        self._filesystem = filesystem
        self._root = root
        self._files = list(files)
        self._is_tried = False

    def __enter__(self) -> Unnamed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_tried:
            self.remove()

    def try_commit(self, make: Callable[[], object]) -> None:
        """Make the commit that names the files. Even if it fails, the files stay from now on."""
        self._is_tried = True
        make()

    def remove(self) -> None:
        for file in self._files:
            # Upkeep removes the files that we can't remove now, and an error here would hide the original one.
            with suppress(OSError):
                self._filesystem.delete_file(f"{self._root}/{file.path}")


def is_made(look: Callable[[], bool]) -> bool:
    """Return True if a commit that seemed to fail is in the table's log all the same.

    `look` reads the log. If that fails too, the answer is no: the commit then counts as failed, and a repeat of the
    batch will look again.
    """
    try:
        return look()
    except Exception:  # from a library of the store; the caller raises the first error, which says more
        return False
