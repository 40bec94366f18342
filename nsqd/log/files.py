"""The disk as the log sees it: every system call on files goes through here.

This is one small seam for tests, which can pass in a disk that is full, fails, or forgets what was not synced. Nothing
here decides anything; all methods raise OSError as the system does.
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
MOST_BUFFERS: Final = 1024  # IOV_MAX on Linux: what one pwritev takes
LARGE: Final = 4 << 20  # bytes of a write that goes in pieces
PIECE: Final = 96 * 1024

_FALLOC_FL_KEEP_SIZE: Final = 1
_fallocate: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # os' one would make the file longer
_sync_data: Final = data_sync()
_HAS_CACHED_READS: Final = hasattr(os, "RWF_NOWAIT")


def _write_joined(descriptor: int, buffers: Buffers, offset: int) -> int:
    return os.pwrite(descriptor, b"".join(buffers), offset)


_write_vector: Final[Callable[[int, Buffers, int], int]] = getattr(os, "pwritev", _write_joined)


class Files:
    """The real disk."""

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(SCRATCH_SIZE))

    def open_to_write(self, path: Path) -> int:
        """Open a file for writing at given offsets, and create it if it does not exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def open_new(self, path: Path) -> int:
        """Create a file and open it for writing. Raises FileExistsError, also if another machine was quicker."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def open_to_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        """Write at most MOST_BUFFERS buffers with one system call. Return how many bytes were written."""
        return _write_vector(descriptor, buffers, offset)

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def read_cached_at(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read from the page cache only; raises BlockingIOError if the bytes would have to come from the disk.

        May return fewer bytes than were asked for. Other OSErrors come from systems and file systems that do not
        support such reads. Only the loop may call this, because calls share a buffer.
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
        """Have the file system reserve space for later writes, without making the file longer."""
        if _fallocate is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if _fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(size)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def free_bytes(self, folder: Path) -> int:
        """Return how many bytes we may still write to the folder's file system."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, folder: Path) -> int:
        found = os.statvfs(folder)
        return found.f_blocks * found.f_frsize

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=FOLDER_MODE)

    def remove_folder(self, path: Path) -> None:
        shutil.rmtree(path)

    def names_in(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        """Return whether a file or folder of this name exists. Raises OSError if the disk does not tell."""
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def identity_of(self, path: Path) -> tuple[int, int]:
        """Return device and inode, which distinguish this folder from another one of the same name."""
        found = path.stat()
        return found.st_dev, found.st_ino

    def modified_at(self, path: Path) -> int:
        """Return the time of modification in nanoseconds, by the clock of whoever keeps the file."""
        return path.stat().st_mtime_ns

    def touch(self, path: Path) -> None:
        os.utime(path)

    def is_writable(self, path: Path) -> bool:
        return os.access(path, os.W_OK)

    def sync_folder(self, path: Path) -> None:
        """Make the folder's list of names durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_all(descriptor)
        finally:
            os.close(descriptor)

    def lock_folder(self, path: Path) -> int:
        """Lock the folder for this process alone; raises BlockingIOError if another process holds the lock.

        Closing the returned descriptor releases the lock.
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

    def read(self, path: Path) -> bytes:
        descriptor = self.open_to_read(path)
        try:
            return self.read_fully(descriptor, self.size(descriptor), 0)
        finally:
            self.close(descriptor)

    def read_fully(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read `size` bytes, or up to the end of the file."""
        data = self.read_at(descriptor, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        missing = size - len(data)
        while missing:  # one read gives at most 2 GiB, and may be cut short by a signal
            data = self.read_at(descriptor, missing, offset + size - missing)
            if not data:
                break
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def write_fully(self, descriptor: int, buffers: Buffers, offset: int) -> None:
        """Write everything, with as few system calls as possible."""
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
        """Write everything, with a system call for each 96 KB or so.

        For a large write, Linux seems to look for large stretches of free memory. Where memory is fragmented, 13 MB
        took 20 to 30 ms of processor time, and 3 ms right after a start. In pieces of this size they take 5 to 7 ms on
        either day; pieces of 256 KB are too large.
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
        """Create a small file. Raises FileExistsError. Another error leaves none, a crash perhaps an empty one."""
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
        """Replace the file's content in one step: after a crash, the file has either the old content or the new one.

        `suffix` makes the name of the temporary file. Two machines that may write the same file need one each.
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
        """Sync a file by name: the kernel syncs what any descriptor wrote, and reports failures not seen yet."""
        descriptor = self.open_to_read(path)
        try:
            self.sync(descriptor)
        finally:
            self.close(descriptor)


def _in_pieces(buffers: Buffers) -> Iterator[list[bytes]]:
    """Yield these buffers in lists of about PIECE bytes, and parts of those that are larger."""
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
    """What the disk has refused, and why. It outlives the OSError, and crosses threads."""

    text: str  # as `error_text` returns it
    is_full: bool = False  # there is no space, or the quota is used up

    @classmethod
    def of(cls, operation: str, path: Path | str, error: OSError) -> DiskError:
        return cls(error_text(operation, path, error), error.errno in (errno.ENOSPC, errno.EDQUOT))


def error_text(operation: str, path: Path | str, error: OSError) -> str:
    """Return the error's text in the form that Go gives it, which clients and operators of NSQ know."""
    return f"{operation} {path}: {(error.strerror or str(error)).lower()}"


def close_quietly(files: Files, descriptor: int) -> None:
    """Close a descriptor whose error would change nothing: what must last is synced, and a sync reports losses."""
    try:
        files.close(descriptor)
    except OSError as error:
        log.warning("cannot close a file error=%s", error)


def remove_file(files: Files, path: Path) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass
