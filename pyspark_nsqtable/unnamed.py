"""Files that lie in a table's folder and that no commit names: who may remove them.

A commit that failed may be there all the same. Its answer was lost, or its request is still on its way and reaches the store
later, when nobody waits for it any more. So what the log says *now* proves nothing about a file once a commit has tried to
name it: whoever removes the file then may take it out of a table that counts it. Only files that no commit has tried to name
are removed here. All others are left to upkeep, which waits until their lease has long expired (`lease`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from pyarrow.fs import FileSystem

from pyspark_nsqtable.files import DataFile


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
        """Make the commit that names the files. Whatever it raises, they stay from now on."""
        self._is_tried = True
        make()

    def remove(self) -> None:
        for file in self._files:
            # Upkeep removes what cannot be removed now, and an error here would hide the one that led here.
            with suppress(OSError):
                self._filesystem.delete_file(f"{self._root}/{file.path}")


def is_made(look: Callable[[], bool]) -> bool:
    """Return whether a commit that failed is in the table's log all the same.

    `look` reads the log. If it cannot be read either, the answer is no: the commit then counts as failed, and whoever repeats it
    will look again.
    """
    try:
        return look()
    except Exception:  # of a store's library, as the one that brought us here, which is the one to be told
        return False
