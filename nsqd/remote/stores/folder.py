"""A shared folder as an object store: `--remote=file:///FOLDER`, on NFS or CephFS for example.

An object is a file. It is written and synced aside, then gets its name by `link`, which no two writers can do for one
name, and then the folder is synced. So a name has the whole object or doesn't exist, and CREATED outlives a power cut.

    .new/RANDOM  ──link──>  wal/7/00000003

`get` syncs the folder as well before it returns an object, because the object's writer may not have done so yet, or may
have failed to. The writer that repeats its `create` gets EXISTS, finds its own bytes, and takes that for a success. And a
reader that goes on from an `end` writes into the next run: nothing would lead there if the `end` were lost.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from nsqd.log.files import Files, close_quietly, error_text
from nsqd.remote.object_store import LIST_LIMIT, Created, Names, OnUnknown, StoreFault, StoreFaultKind, ignore

_ASIDE: Final = ".new"  # no name begins with a dot
_DAY_NS: Final = 86_400 * 10**9  # after which a file that a killed process has left aside is removed
_KINDS: Final = {
    errno.EACCES: StoreFaultKind.DENIED,
    errno.EDQUOT: StoreFaultKind.FULL,
    errno.ENOSPC: StoreFaultKind.FULL,
    errno.EPERM: StoreFaultKind.DENIED,
    errno.EROFS: StoreFaultKind.DENIED,
    errno.ESTALE: StoreFaultKind.UNREACHABLE,
    errno.ETIMEDOUT: StoreFaultKind.UNREACHABLE,
}

_WHAT_TO_DO: Final = {
    StoreFaultKind.DENIED: "; let the user that runs nsqd write there",
    StoreFaultKind.FULL: "; make room there",
}


def _random_name() -> str:
    return os.urandom(16).hex()


class FolderStore:
    """The folder has to exist. One that isn't mounted would otherwise be made on the local disk.

    `node` is a folder in it, which needn't exist, and which all names are relative to.
    """

    def __init__(
        self,
        folder: Path,
        *,
        node: str = "",
        on_unknown: OnUnknown = ignore,
        files: Files | None = None,
        random_name: Callable[[], str] = _random_name,
    ) -> None:
        self._root = folder
        self._base = folder / node
        self._on_unknown = on_unknown
        self._files = files or Files()
        self._random_name = random_name
        self._lasting: set[Path] = set()  # folders whose names are durable
        self._has_swept = False

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        target = self._path(name)
        try:
            self._make_folder(target.parent)
            aside = self._write_aside(data)
            try:
                created = self._link(aside, target)
            finally:
                with suppress(OSError):
                    self._files.unlink(aside)
            if created is Created.CREATED:
                self._files.sync_folder(target.parent)
        except OSError as error:
            self._lasting.clear()  # a sweep may have removed one; the next try makes it again
            self._on_unknown(self._fault("write", target, error))
            return Created.UNKNOWN
        return created

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        path = self._path(name)
        try:
            found = self._read(path, start, end)
            if found is None:
                self._look_again(path.parent)
                found = self._read(path, start, end)
            if found is not None:
                self._files.sync_folder(path.parent)
        except OSError as error:
            raise self._fault("read", path, error) from error
        return found

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            path = self._path(name)
            try:
                with suppress(FileNotFoundError):
                    self._files.unlink(path)
                self._remove_empty_folders(path.parent)
            except OSError as error:
                raise self._fault("delete", path, error) from error

    def list(self, prefix: str, after: str = "") -> Names:
        assert prefix == "" or prefix.endswith("/")
        try:
            self._files.refresh_folder(self._root)
            return [*islice(_names_in(self._base / prefix, prefix, after), LIST_LIMIT)]
        except OSError as error:
            raise self._fault("list", self._base / prefix, error) from error

    def overwrite(self, name: str, data: bytes) -> None:
        target = self._path(name)
        try:
            self._make_folder(target.parent)
            self._files.rename(self._write_aside(data), target)
            self._files.sync_folder(target.parent)
        except OSError as error:
            raise self._fault("write", target, error) from error

    # Steps

    def _path(self, name: str) -> Path:
        assert not any(word.startswith(".") or not word for word in name.split("/")), name
        return self._base / name

    def _write_aside(self, data: bytes | Sequence[bytes]) -> Path:
        self._make_folder(self._root / _ASIDE)
        path = self._root / _ASIDE / self._random_name()
        descriptor = self._files.open_new(path)
        try:
            self._files.write_in_pieces(descriptor, [data] if isinstance(data, bytes) else data, 0)
            self._files.sync(descriptor)
        except OSError:
            with suppress(OSError):
                self._files.unlink(path)
            raise
        finally:
            close_quietly(self._files, descriptor)
        if not self._has_swept:
            self._has_swept = True
            with suppress(OSError):
                self._remove_leftovers(self._files.modified_at(path))
        return path

    def _link(self, aside: Path, target: Path) -> Created:
        try:
            self._files.link(aside, target)
        except FileExistsError:
            return Created.EXISTS
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise OSError(
                    error.errno, "this file system has no hard links, so it can't decide who is first"
                ) from error
            raise
        return Created.CREATED

    def _make_folder(self, path: Path) -> None:
        """Make a folder unless it exists, and its name durable in any case: another process may have just made it."""
        if path == self._root or path in self._lasting:
            return
        self._make_folder(path.parent)
        with suppress(FileExistsError):
            self._files.make_folder(path)
        self._files.sync_folder(path.parent)
        self._lasting.add(path)

    def _read(self, path: Path, start: int, end: int | None) -> bytes | None:
        try:
            descriptor = self._files.open_to_read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            size = self._files.size(descriptor)
            return self._files.read_fully(descriptor, max(0, min(size, end or size) - start), start)
        finally:
            close_quietly(self._files, descriptor)

    def _look_again(self, folder: Path) -> None:
        """Have the file system ask its server which names there are. Raises OSError if the store's folder is missing."""
        try:
            self._files.refresh_folder(folder)
        except (FileNotFoundError, NotADirectoryError):
            if folder == self._root:
                raise
            self._look_again(folder.parent)

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self._root:
            try:
                self._files.remove_empty_folder(folder)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    return
                raise
            self._lasting.discard(folder)
            folder = folder.parent

    def _remove_leftovers(self, now: int) -> None:
        """Remove what killed processes have left aside. `now` is the file server's clock, in nanoseconds."""
        for name in self._files.names_in(self._root / _ASIDE):
            path = self._root / _ASIDE / name
            with suppress(FileNotFoundError):
                if now - self._files.modified_at(path) > _DAY_NS:
                    self._files.unlink(path)

    def _fault(self, operation: str, path: Path, error: OSError) -> StoreFault:
        if error.errno == errno.ENOENT and not self._exists():
            return StoreFault(
                f"file://{self._root}: there is no such folder: mount it, or make it", StoreFaultKind.MISSING
            )
        kind = _KINDS.get(error.errno or 0, StoreFaultKind.OTHER)
        what_to_do = _WHAT_TO_DO.get(kind, "")
        return StoreFault(f"file://{self._root}: {error_text(operation, path, error)}{what_to_do}", kind)

    def _exists(self) -> bool:
        with suppress(OSError):
            return self._files.exists(self._root)
        return True


def _names_in(folder: Path, prefix: str, after: str) -> Iterator[str]:
    """Yield the names below a folder that come after `after`, in their order, which is that of folders with a slash."""
    try:
        with os.scandir(folder) as found:
            entries = sorted((it.name + "/" * it.is_dir(), it.name) for it in found if not it.name.startswith("."))
    except FileNotFoundError:
        return
    for shown, name in entries:
        path = prefix + shown
        if not shown.endswith("/"):
            if path > after:
                yield path
        elif path > after or after.startswith(path):
            yield from _names_in(folder / name, path, after)
