"""Second names of files whose bytes are on this disk only, so that a root can still read what nsqd removes meanwhile.

A file keeps its bytes for as long as one of its names is left. So a root in the making isn't given up because a segment is
finished or a journal replaced, as happens each second on a busy node. The space is free when the root is stored.

    topics/t.orders/00000003.log ──┐
    unsent/7 ──────────────────────┴── the same bytes
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.remote.local_files import LocalFiles

FOLDER: Final = "unsent"
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


class SecondNames:
    def __init__(self, local: LocalFiles) -> None:
        self._local = local
        self._names: dict[str, str] = {}

    def give(self, paths: Iterable[str]) -> bool:
        """Give each of these files a second name, unless it has one or this file system has no links. Raises OSError.

        Return whether all of them were still there. If not, call this again with the files that are needed by then: few
        of many thousands are new, so some call is faster than the next file vanishes.
        """
        files, folder = self._local.files, self._local.folder
        self._local.make_folders(folder / FOLDER)
        is_complete = True
        for path in paths:
            if path in self._names:
                continue
            name = f"{FOLDER}/{len(self._names)}"
            try:
                files.link(folder / path, folder / name)
                self._names[path] = name
            except FileNotFoundError:
                is_complete = False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    return True
                raise
        return is_complete

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return bytes of a file, which may have lost its first name. Raises OSError."""
        return self._local.read(self._names.get(path, path), start, stop)

    def sync(self) -> None:
        self._local.sync(self._names.values())

    def take_away(self) -> None:
        """Remove all second names, including leftovers of a killed process. Raises OSError."""
        self._names.clear()
        files, folder = self._local.files, self._local.folder / FOLDER
        with suppress(FileNotFoundError):
            for name in files.names_in(folder):
                files.unlink(folder / name)
            files.remove_empty_folder(folder)
