"""The disk as the log sees it: every system call on files goes through `Files`.

It's a seam for tests, which pass in a disk that is full, fails, or forgets unsynced data. There are no decisions here,
and all methods raise OSError like the system calls.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nsqcommon.disk_sync import data_sync, sync_all

log = logging.getLogger(__name__)

Buffers = Sequence[bytes]

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
SCRATCH_SIZE: Final = 512 * 1024
MOST_BUFFERS: Final = 1024  # IOV_MAX on Linux: the most buffers for one pwritev
LARGE: Final = 4 << 20  # bytes; larger writes use `write_in_pieces`
PIECE: Final = 96 * 1024

_FALLOC_FL_KEEP_SIZE: Final = 1
_fallocate: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # os.posix_fallocate grows the file
_sync_data: Final = data_sync()
_UNNAMED: Final = getattr(os, "O_TMPFILE", 0)  # of Linux
_HAS_CACHED_READS: Final = hasattr(os, "RWF_NOWAIT")


def _write_joined(descriptor: int, buffers: Buffers, offset: int) -> int:
    return os.pwrite(descriptor, b"".join(buffers), offset)


_write_vector: Final[Callable[[int, Buffers, int], int]] = getattr(os, "pwritev", _write_joined)


class Files:
    """The real disk."""

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(SCRATCH_SIZE))

    def open_to_write(self, path: Path) -> int:
        """Open a file for reading and writing, and create it if it doesn't exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def open_new(self, path: Path) -> int:
        """Create a file and open it. Raises FileExistsError, also when another machine has just created it."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def open_to_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        """Write up to MOST_BUFFERS buffers with one system call. Returns how many bytes were written."""
        return _write_vector(descriptor, buffers, offset)

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def read_cached_at(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read from the page cache only. Raises BlockingIOError if it would have to wait for the disk.

        It may return fewer bytes than you asked for. Other OSErrors mean that the system or the file system doesn't
        support this. Only the event loop may call this, because all calls share one buffer.
        """
        if not _HAS_CACHED_READS:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        view = self._scratch[:size] if size <= SCRATCH_SIZE else memoryview(bytearray(size))
        count = os.preadv(descriptor, [view], offset, os.RWF_NOWAIT)
        return bytes(view[:count])

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def size_of(self, path: Path) -> int:
        return path.stat().st_size

    def sync(self, descriptor: int) -> None:
        _sync_data(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        """Reserve space for later writes without making the file longer."""
        if _fallocate is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if _fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(size)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def free_bytes(self, folder: Path) -> int:
        """Return how many bytes are free for us (not only for root) on the folder's file system."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, folder: Path) -> int:
        found = os.statvfs(folder)
        return found.f_blocks * found.f_frsize

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Raises FileExistsError if there is something of that name."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=FOLDER_MODE)

    def remove_folder(self, path: Path) -> None:
        shutil.rmtree(path)

    def remove_empty_folder(self, path: Path) -> None:
        path.rmdir()

    def names_in(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def refresh_folder(self, path: Path) -> None:
        """Have a client of NFS ask its server again which names there are.

        Such a client remembers for up to a minute that a name doesn't exist. When a folder is opened, it has to ask.
        """
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def exists(self, path: Path) -> bool:
        """Return whether this file or folder exists. Raises OSError if the disk can't say."""
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def identity_of(self, path: Path) -> tuple[int, int]:
        """Return device and inode, which change if the folder is replaced by another one."""
        found = path.stat()
        return found.st_dev, found.st_ino

    def modified_at(self, path: Path) -> int:
        """Return the modification time in nanoseconds. On a network file system, it's by the server's clock."""
        return path.stat().st_mtime_ns

    def touch(self, path: Path) -> None:
        os.utime(path)

    def is_writable(self, path: Path) -> bool:
        return os.access(path, os.W_OK)

    def sync_folder(self, path: Path) -> None:
        """Sync the folder itself, which makes the names in it durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_all(descriptor)
        finally:
            os.close(descriptor)

    def lock_folder(self, path: Path) -> int:
        """Lock the folder. Raises BlockingIOError if another process has locked it.

        To release the lock, close the returned descriptor.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    # Built on the calls above

    def open_unnamed(self, folder: Path) -> int:
        """Open a new file on this folder's disk that has no name, so that nothing is left of it when this process dies."""
        if _UNNAMED:
            try:
                return os.open(folder, _UNNAMED | os.O_RDWR | os.O_CLOEXEC, FILE_MODE)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise  # these say that this file system has no such files
        path = folder / "unnamed.tmp"
        descriptor = self.open_to_write(path)
        try:
            self.unlink(path)
            self.truncate(descriptor, 0)  # a process that died in between may have left it
        except BaseException:
            self.close(descriptor)
            raise
        return descriptor

    def read(self, path: Path) -> bytes:
        descriptor = self.open_to_read(path)
        try:
            return self.read_fully(descriptor, self.size(descriptor), 0)
        finally:
            self.close(descriptor)

    def read_fully(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read `size` bytes, or fewer if the file ends earlier."""
        data = self.read_at(descriptor, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        missing = size - len(data)
        while missing:  # one read returns at most 2 GiB, and a signal can cut it short
            data = self.read_at(descriptor, missing, offset + size - missing)
            if not data:
                break
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def write_fully(self, descriptor: int, buffers: Buffers, offset: int) -> None:
        """Write all buffers, with as few system calls as possible."""
        rest = list(buffers)
        while rest:
            written = self.write_at(descriptor, rest[:MOST_BUFFERS], offset)
            offset += written
            whole = 0
            while whole < len(rest) and written >= len(rest[whole]):
                written -= len(rest[whole])
                whole += 1
            del rest[:whole]
            if written:
                rest[0] = rest[0][written:]

    def write_in_pieces(self, descriptor: int, buffers: Buffers, offset: int) -> None:
        """Write all buffers, with one system call per 96 KB or so.

        One large write can be slow, because Linux seems to search for large areas of free memory. Writing 13 MB took
        3 ms of processor time on a freshly booted machine, but 20 to 30 ms once its memory was fragmented. In pieces of
        this size it takes 5 to 7 ms in both cases. Pieces of 256 KB are too large to help.
        """
        for some in _in_pieces(buffers):
            self.write_fully(descriptor, some, offset)
            offset += sum(map(len, some))

    def write_new(self, path: Path, data: bytes) -> None:
        """Write a small file without syncing it."""
        descriptor = self.open_to_write(path)
        try:
            self.truncate(descriptor, 0)
            self.write_fully(descriptor, [data], 0)
        finally:
            self.close(descriptor)

    def create(self, path: Path, data: bytes) -> None:
        """Create a small file and sync it. Raises FileExistsError. After any other error, the file doesn't exist.

        A crash may leave an empty file.
        """
        descriptor = self.open_new(path)
        try:
            try:
                self.write_fully(descriptor, [data], 0)
                self.sync(descriptor)
            finally:
                self.close(descriptor)
        except OSError:
            with suppress(OSError):
                self.unlink(path)
            raise
        self.sync_folder(path.parent)

    def replace(self, path: Path, data: bytes, *, suffix: str = ".tmp") -> None:
        """Replace a file atomically and durably: after a crash it has either the old content or the new one.

        `suffix` names the temporary file. If two machines may write the same file, as with owner.json, each needs its
        own suffix.
        """
        temporary = path.with_name(path.name + suffix)
        descriptor = self.open_to_write(temporary)
        try:
            self.truncate(descriptor, 0)
            self.write_fully(descriptor, [data], 0)
            self.sync(descriptor)
        finally:
            self.close(descriptor)
        self.rename(temporary, path)
        self.sync_folder(path.parent)

    def sync_path(self, path: Path) -> None:
        """Sync a file by name. This covers writes through any descriptor, and raises write errors not raised before."""
        descriptor = self.open_to_read(path)
        try:
            self.sync(descriptor)
        finally:
            self.close(descriptor)


def _in_pieces(buffers: Buffers) -> Iterator[list[bytes]]:
    """Yield the buffers in lists of about PIECE bytes, splitting the larger ones."""
    some: list[bytes] = []
    size = 0
    for buffer in buffers:
        for start in range(0, len(buffer), PIECE):
            part = buffer[start : start + PIECE]
            some.append(part)
            size += len(part)
            if size >= PIECE:
                yield some
                some, size = [], 0
    if some:
        yield some


class DiskError(NamedTuple):
    """A failed disk operation as plain text: easy to keep, and safe to pass between threads."""

    text: str  # from `error_text`
    is_full: bool = False  # no space left, or over quota

    @classmethod
    def of(cls, operation: str, path: Path | str, error: OSError) -> DiskError:
        return cls(error_text(operation, path, error), error.errno in (errno.ENOSPC, errno.EDQUOT))


def error_text(operation: str, path: Path | str, error: OSError) -> str:
    """Return the error's text in Go's form, which clients and operators of NSQ know."""
    return f"{operation} {path}: {(error.strerror or str(error)).lower()}"


def close_quietly(files: Files, descriptor: int) -> None:
    """Close a descriptor and only log any error, because a sync would already have reported lost data."""
    try:
        files.close(descriptor)
    except OSError as error:
        log.warning("failed to close a file error=%s", error)


def remove_file(files: Files, path: Path) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass
