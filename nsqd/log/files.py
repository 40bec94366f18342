"""The disk as the log sees it: every system call on files goes through here.

One small seam, so that tests can hand in a disk that is full, fails, or forgets what was not synced. Nothing here
decides anything; all methods raise OSError as the system does.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

Buffers = Sequence[bytes]

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
SCRATCH_SIZE: Final = 128 * 1024
MOST_BUFFERS: Final = 1024  # IOV_MAX on Linux: what one pwritev takes

_FALLOC_FL_KEEP_SIZE: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)  # os.posix_fallocate would make the file longer


class Files:
    """The real disk."""

    def __init__(self) -> None:
        self._scratch = memoryview(bytearray(SCRATCH_SIZE))

    def open_to_write(self, path: Path) -> int:
        """Opens for writing at given offsets, and makes the file if there is none."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def open_to_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        """Writes at most MOST_BUFFERS buffers with one system call; returns how many bytes went."""
        return os.pwritev(descriptor, buffers, offset)

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def read_cached_at(self, descriptor: int, size: int, offset: int) -> bytes:
        """Reads what the page cache holds; a BlockingIOError says that the disk would be needed.

        May return less than there is. File systems without such reads raise another OSError. For the loop alone.
        """
        view = self._scratch[:size] if size <= SCRATCH_SIZE else memoryview(bytearray(size))
        count = os.preadv(descriptor, [view], offset, os.RWF_NOWAIT)
        return bytes(view[:count])

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def size_of(self, path: Path) -> int:
        return path.stat().st_size

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        """Has the file system set space aside for later writes; the file does not get longer."""
        if _libc.fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(size)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def free_bytes(self, folder: Path) -> int:
        """What we may still write to the folder's file system."""
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
        """Return whether there is something of this name. Raises OSError if the disk does not tell."""
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def identity_of(self, path: Path) -> tuple[int, int]:
        """Return device and inode, which tell this folder from another one of the same name."""
        found = path.stat()
        return found.st_dev, found.st_ino

    def is_writable(self, path: Path) -> bool:
        return os.access(path, os.W_OK)

    def sync_folder(self, path: Path) -> None:
        """Makes durable which names the folder holds."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock_folder(self, path: Path) -> int:
        """Takes the folder for this process alone; a BlockingIOError says that somebody has it.

        The lock goes with the descriptor that is returned.
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

    # What is made of the above

    def read(self, path: Path) -> bytes:
        descriptor = self.open_to_read(path)
        try:
            return self.read_fully(descriptor, self.size(descriptor), 0)
        finally:
            self.close(descriptor)

    def read_fully(self, descriptor: int, size: int, offset: int) -> bytes:
        """Reads `size` bytes, or up to the end of the file."""
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
        """Writes everything, with as few system calls as there can be."""
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

    def write_new(self, path: Path, data: bytes) -> None:
        """Writes a small file, unsynced."""
        descriptor = self.open_to_write(path)
        try:
            self.truncate(descriptor, 0)
            self.write_fully(descriptor, [data], 0)
        finally:
            self.close(descriptor)

    def replace(self, path: Path, data: bytes) -> None:
        """Puts `data` in the place of the file in one step: after a crash there is the old one or the new one."""
        temporary = path.with_name(path.name + ".tmp")
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
        """Syncs a file by name: the kernel syncs what any descriptor wrote, and reports failures that nobody has seen."""
        descriptor = self.open_to_read(path)
        try:
            self.sync(descriptor)
        finally:
            self.close(descriptor)


def error_text(operation: str, path: Path | str, error: OSError) -> str:
    """An error as Go words it: clients and operators of NSQ know this form."""
    return f"{operation} {path}: {(error.strerror or str(error)).lower()}"


def close_quietly(files: Files, descriptor: int) -> None:
    """For where an error changes nothing: what is to last is synced, and a sync reports what was lost."""
    try:
        files.close(descriptor)
    except OSError as error:
        log.warning("cannot close a file error=%s", error)


def remove_file(files: Files, path: Path) -> None:
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass
