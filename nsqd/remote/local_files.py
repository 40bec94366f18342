"""The files of a data path that are the node's, by their names below it, as a store knows them.

Other files may be there as well: those of this process (owner.json, remote.json, the copy of the policy), those that went
aside when an owner began, and those of other programs. They are no part of the node, so they stay where they are.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.log.data_path import NODE_JSON, READERS_JSON, TOPICS, TOPOLOGY_JSON, is_journal
from nsqd.remote.recorder import is_shipped

if TYPE_CHECKING:
    from nsqd.log.files import Files

REMOTE_JSON: Final = "remote.json"
ASIDE: Final = "aside-"
_OURS: Final = frozenset((NODE_JSON, TOPOLOGY_JSON, READERS_JSON))
_FETCHED: Final = ".fetched"  # what a file is called until all of it is there
_SYNCS_AT_ONCE: Final = 16
_NEW: Final = ".tmp"  # what `Files.replace` appends


def folders_aside(data_path: Path, files: Files) -> tuple[Path, ...]:
    """Return the folders with files that went aside when an owner began, the oldest first. Raises OSError."""
    return tuple(data_path / name for name in sorted(files.names_in(data_path)) if name.startswith(ASIDE))


class LocalFiles:
    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.files = files

    # What is there

    def every(self) -> list[str]:
        """Return every file of the node, including files that slots don't have."""
        return [it for it in self._all() if not it.endswith(_FETCHED)]

    def _all(self) -> list[str]:
        top = [it for it in self.files.names_in(self.folder) if _is_ours(it)]
        return sorted([*top, *self._within(self.folder / TOPICS)])

    def shipped(self) -> dict[str, int]:
        """Return the size of each file that slots have."""
        paths = (self.folder / it for it in self.every() if not it.endswith(_NEW))
        return {self.name(path): self.files.size_of(path) for path in paths if is_shipped(path)}

    def _within(self, folder: Path) -> Iterator[str]:
        try:
            names = self.files.names_in(folder)
        except NotADirectoryError:
            yield self.name(folder)
            return
        except FileNotFoundError:
            return
        for name in names:
            yield from self._within(folder / name)

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.folder))

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return the bytes of a file, or fewer if it ends earlier. Raises OSError."""
        descriptor = self.files.open_to_read(self.folder / path)
        try:
            return self.files.read_fully(descriptor, stop - start, start)
        finally:
            self.files.close(descriptor)

    # Changes

    def remove_half_fetched(self) -> None:
        """Remove what a start has left that died while it fetched."""
        for path in self._all():
            if path.endswith(_FETCHED):
                self.files.unlink(self.folder / path)

    def make_folders(self, path: Path) -> None:
        """Make a folder below the data path, with its parents."""
        if path == self.folder or self.files.exists(path):
            return
        self.make_folders(path.parent)
        self.files.make_folder(path)

    def put_aside(self, path: str, aside: Path) -> None:
        target = aside / path
        self.make_folders(target.parent)
        self.files.rename(self.folder / path, target)

    def keep_aside(self, path: str, aside: Path) -> None:
        """Give a file a second name there, because it is about to be replaced and must not be missing in between."""
        target = aside / path
        self.make_folders(target.parent)
        try:
            self.files.link(self.folder / path, target)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            self.files.replace(target, self.files.read(self.folder / path))  # this file system has no links

    def begin_fetched(self, path: str, *, kept: int, size: int) -> None:
        """Make a file that will get its name by `finish_fetched`, or go on with `kept` bytes of it. The rest is zeros."""
        target = self._fetched(path)
        self.make_folders(target.parent)
        descriptor = self.files.open_to_write(target)
        try:
            self.files.truncate(descriptor, kept)
            self.files.truncate(descriptor, size)
        finally:
            self.files.close(descriptor)

    def write_fetched(self, path: str, data: bytes, offset: int) -> None:
        descriptor = self.files.open_to_write(self._fetched(path))
        try:
            self.files.write_in_pieces(descriptor, [data], offset)
        finally:
            self.files.close(descriptor)

    def sync_fetched(self, paths: Iterable[str]) -> None:
        """Make the bytes of these files durable, before they get their names. Raises OSError."""
        self._in_threads(self.files.sync_path, map(self._fetched, paths))

    def finish_fetched(self, path: str) -> None:
        """Give a file its name, which is durable when its folder is synced."""
        self.files.rename(self._fetched(path), self.folder / path)

    def drop_fetched(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.files.unlink(self._fetched(path))

    def _fetched(self, path: str) -> Path:
        target = self.folder / path
        return target.with_name(target.name + _FETCHED)

    def remove_empty_folders(self, wanted: Iterable[str]) -> None:
        """Remove the folders of topics that have no file, except wanted folders and the folders of wanted files."""
        kept = {"/".join(it.split("/")[:2]) for it in wanted}
        with suppress(FileNotFoundError):
            for name in self.files.names_in(self.folder / TOPICS):
                if f"{TOPICS}/{name}" not in kept:
                    self._remove_if_empty(self.folder / TOPICS / name)

    def _remove_if_empty(self, folder: Path) -> None:
        with suppress(NotADirectoryError):
            for name in self.files.names_in(folder):
                self._remove_if_empty(folder / name)
            if not self.files.names_in(folder):
                self.files.remove_empty_folder(folder)

    def sync(self, paths: Iterable[str]) -> None:
        """Make these files and their names durable, as far as they are still there. Raises OSError."""
        files = {self.folder / path for path in paths}
        self._in_threads(self.files.sync_path, files)
        self._in_threads(self.files.sync_folder, {self.folder, self.folder / TOPICS, *(it.parent for it in files)})

    def _in_threads(self, sync: Callable[[Path], None], paths: Iterable[Path]) -> None:
        """Sync many things at a time, because a disk makes what comes together durable in one go."""

        def sync_if_there(path: Path) -> None:
            with suppress(FileNotFoundError):
                sync(path)

        with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="nsqd remote sync") as threads:
            for _ in threads.map(sync_if_there, sorted(paths)):
                pass


def _is_ours(name: str) -> bool:
    name = name.removesuffix(_FETCHED)
    return name in _OURS or is_journal(name)
