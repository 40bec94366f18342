"""One file of nsq_to_file on the disk: opened under a free name, written and synced, closed, and moved to its folder.

Everything here blocks: call it in a thread, one call at a time. Nothing is buffered: when `write` returns, its data are
on the disk; otherwise it raises ArchiveFailed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import Final

from nsqcommon.disk_sync import sync_all
from nsqtools.rotation import REVISION, with_revision

_GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # without name and time
_FASTEST: Final = b"\x04"
_BEST: Final = b"\x02"
_UNKNOWN_SYSTEM: Final = b"\xff"


class ArchiveFailed(Exception):
    """The disk has failed. The message becomes the last line of the log."""


class FileReplaced(Exception):
    """The file was moved, removed or replaced, so its data are in the wrong place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where to create files, and how."""

    output_dir: str
    work_dir: str  # `output_dir`, unless set
    gzip: bool
    gzip_level: int
    exclusive: bool  # each start begins a new file
    rotate_size: int

    @property
    def moves(self) -> bool:
        return self.work_dir != self.output_dir


def gzip_member(data: bytes, level: int) -> bytes:
    """Return one complete gzip member: a header without name and time, data, checksum."""
    speed = _FASTEST if level == 1 else _BEST if level == 9 else b"\x00"
    compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = compressor.compress(data) + compressor.flush()
    trailer = pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((_GZIP_HEADER, speed, _UNKNOWN_SYSTEM, body, trailer))


class ArchiveFile:
    """An open file, made by `open_next`."""

    def __init__(
        self, layout: Layout, name: str, revision: int, descriptor: int, log: logging.LoggerAdapter[logging.Logger]
    ) -> None:
        self.revision = revision
        self.path = Path(layout.work_dir, with_revision(name, revision))
        self.size_at_open = os.fstat(descriptor).st_size
        self._layout = layout
        self._name = name
        self._descriptor = descriptor
        self._written = self.size_at_open > 0
        self._log = log

    def end_torn_record(self) -> None:
        """End a record that a crash or a full disk has cut off, so that its repeat gets its own line.

        Raises ArchiveFailed.
        """
        size = self.size_at_open
        if size and not self._layout.gzip and os.pread(self._descriptor, 1, size - 1) != b"\n":
            self._log.warning("%s ends within a message", self.path)
            self._put(b"\n")

    def write(self, data: bytes) -> None:
        """Write data and return when they are on the disk. Raise ArchiveFailed, or FileReplaced."""
        if self._layout.gzip:
            data = gzip_member(data, self._layout.gzip_level)
        self._put(data)
        self._sync("failed syncing messages")
        if not self._is_in_place():
            raise FileReplaced

    def close(self) -> None:
        """Close the file and move it to the output folder. Raise ArchiveFailed; the file is closed even then."""
        try:
            if self._layout.gzip and not self._written:
                self._put(gzip_member(b"", self._layout.gzip_level))  # an empty file is not a valid gzip file
            self._sync("failed to fsync output file")
        finally:
            self.abandon()
        if self._layout.moves:
            self._move()

    def abandon(self) -> None:
        """Close the file in place. Raise ArchiveFailed."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.close(descriptor)
            except OSError as error:
                raise ArchiveFailed(f"failed to close output file: {_reason(error)}") from error

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
                self._written = True
        except OSError as error:
            raise ArchiveFailed(f"writing message to disk: write {self.path}: {_reason(error)}") from error

    def _sync(self, what: str) -> None:
        try:
            sync_all(self._descriptor)
        except OSError as error:
            raise ArchiveFailed(f"{what}: sync {self.path}: {_reason(error)}") from error

    def _is_in_place(self) -> bool:
        try:
            found = self.path.stat()
        except OSError:
            return False
        mine = os.fstat(self._descriptor)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _move(self) -> None:
        revision = self.revision
        target = wanted = Path(self._layout.output_dir, with_revision(self._name, revision))
        self._log.info("moving finished file %s to %s", self.path, wanted)
        make_folders(target.parent)
        while not self._link(target):
            self._log.warning("destination file already exists: %s", target)
            revision += 1
            target = Path(self._layout.output_dir, with_revision(self._name, revision))
        if target != wanted:
            self._log.info("renamed finished file %s to %s to avoid overwrite", wanted, target)
        try:
            self.path.unlink()
        except OSError as error:
            raise ArchiveFailed(f"unable to move file from {self.path} to {target}: {_reason(error)}") from error
        sync_folder(target.parent)
        sync_folder(self.path.parent)

    def _link(self, target: Path) -> bool:
        """Link the file to a second name. Return False if the name is taken, where a rename would replace that file."""
        try:
            os.link(self.path, target)
        except FileExistsError:
            return False
        except OSError as error:
            raise ArchiveFailed(f"unable to move file from {self.path} to {target}: {_reason(error)}") from error
        return True


def open_next(layout: Layout, name: str, revision: int, log: logging.LoggerAdapter[logging.Logger]) -> ArchiveFile:
    """Open the first usable file of this name, starting with this revision. Raise ArchiveFailed."""
    make_folders(Path(layout.work_dir, name).parent)
    while True:
        file = _try_to_open(layout, name, revision, log)
        if file is not None:
            return file
        revision += 1


def _try_to_open(
    layout: Layout, name: str, revision: int, log: logging.LoggerAdapter[logging.Logger]
) -> ArchiveFile | None:
    path = Path(layout.work_dir, with_revision(name, revision))
    final = Path(layout.output_dir, with_revision(name, revision))
    if layout.moves and final.exists():
        log.warning("output file already exists: %s", final)
        return None
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if layout.exclusive else os.O_APPEND)
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileExistsError:
        log.warning("working file already exists: %s", path)
        return None
    except OSError as error:
        raise ArchiveFailed(f"unable to open {path}: {_reason(error)}") from error
    if not _lock(descriptor):
        os.close(descriptor)
        if REVISION not in name:
            raise ArchiveFailed(f"unable to open {path}: another process writes to it")
        log.warning("another process writes to %s", path)
        return None
    file = ArchiveFile(layout, name, revision, descriptor, log)
    if 0 < layout.rotate_size < file.size_at_open:
        log.info("%s currently %d bytes (> %d), rotating...", path, file.size_at_open, layout.rotate_size)
        file.abandon()
        return None
    sync_folder(path.parent)
    log.info("opening %s", path)
    file.end_torn_record()
    return file


def _lock(descriptor: int) -> bool:
    """Lock the file. Return False if another process has the lock, because it would move the file away from us."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: assume that the file is free
        return True
    return True


def make_folders(folder: Path) -> None:
    """Make this folder and its parents, and sync their names. Raise ArchiveFailed."""
    try:
        if not folder.is_dir():
            make_folders(folder.parent)
            folder.mkdir(0o770, exist_ok=True)
            sync_folder(folder.parent)
    except FileExistsError as error:
        raise ArchiveFailed(f"unable to create dir: mkdir {folder}: not a directory") from error
    except OSError as error:
        raise ArchiveFailed(f"unable to create dir: mkdir {folder}: {_reason(error)}") from error


def check_folders(layout: Layout) -> None:
    """Check that we can create and move files, before there are data to lose. Raise ArchiveFailed."""
    folders = (Path(layout.output_dir), Path(layout.work_dir))
    for folder in folders:
        make_folders(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ArchiveFailed(f"unable to write to {folder}: permission denied")
    if folders[0].stat().st_dev != folders[1].stat().st_dev:
        raise ArchiveFailed("--work-dir and --output-dir must be on the same file system")


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries, without which its files could be lost. Raise ArchiveFailed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync_all(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ArchiveFailed(f"failed to fsync dir {folder}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
