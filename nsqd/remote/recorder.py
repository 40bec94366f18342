"""The disk, with a list of everything that was done to it.

`RecordedFiles` stands in the place of `Files` and passes each call on. When a call that changes something has succeeded,
the change is recorded before the call returns. So a change that depends on another one, in any thread, is recorded after
it: `unlink` of a finished segment comes after the journal's "finished", because that call had returned before.

If you repeat any number of these changes from the beginning, you have a folder that `kill -9` could have left.

Small files (`*.json`) are recorded whole, when they are complete. In between they would be torn, and a start
would have to report that. A file that a start can make again isn't recorded at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nsqcommon.remote.operations import (
    Cut,
    MakeFolder,
    OpenFile,
    Operation,
    Remove,
    Rename,
    Replace,
    Write,
)
from nsqd.log.data_path import is_log_folder
from nsqd.log.files import Buffers, Files

_NEW: Final = ".tmp"  # what `Files.replace` appends to the name of a new version
_WHOLE: Final = ".json"
_LARGE: Final = 16 * 1024  # bytes; to copy a buffer of this size costs more than to have one more
_NOT_SHIPPED: Final = (
    "topology.json",
    "readers.json",
    "owner.json",
    "policy.json",
    "remote.json",
    "go-import.json",
    "probe.tmp",
)
_NOT_SHIPPED_PARTS: Final = (".index", ".damaged", ".torn")


def is_shipped(path: Path) -> bool:
    """Return whether a file or folder of the data path is recorded. A root has topology.json as well.

    Folders always are: a topic may be called `orders.index`.
    """
    name = path.name
    if is_log_folder(name):
        return True
    return not name.startswith(_NOT_SHIPPED) and not any(it in name for it in _NOT_SHIPPED_PARTS)


@dataclass(frozen=True, slots=True)
class Closed:
    """The number of this file isn't used any more. Slots don't say that, because it is no change."""

    file: int


@dataclass(eq=False, slots=True)
class Recorded:
    """A change, with its bytes. A large write has them in several buffers."""

    operation: Operation | Closed
    data: bytes = b""
    rest: Sequence[bytes] = ()  # what comes after `data`

    @property
    def size(self) -> int:
        return len(self.data) + sum(map(len, self.rest)) if self.rest else len(self.data)


class RecordedFiles(Files):
    """Another disk, whose changes below `folder` are handed to `record` in an order that is theirs."""

    def __init__(self, files: Files, folder: Path, record: Callable[[Recorded], None]) -> None:
        super().__init__()
        self._files = files
        self._folder = folder
        self._record = record
        self._lock = threading.Lock()
        self._opened = 0
        self._numbers: dict[int, int] = {}  # of files, by descriptor
        self._whole: dict[int, tuple[Path, bytearray]] = {}  # what was written to small files that are open
        self._new: dict[Path, bytes] = {}  # new versions that don't have their name yet

    def record_to(self, record: Callable[[Recorded], None]) -> None:
        """Hand the changes to this from now on. Call it before any file is open, because this has to know their numbers."""
        with self._lock:
            self._record = record

    # Calls that change something

    def open_to_write(self, path: Path) -> int:
        return self._note_opened(self._files.open_to_write(path), path)

    def open_new(self, path: Path) -> int:
        return self._note_opened(self._files.open_new(path), path)

    def _note_opened(self, descriptor: int, path: Path) -> int:
        if not self._is_ours(path):
            return descriptor
        with self._lock:
            if _is_whole(path):
                self._whole[descriptor] = path, bytearray()
            else:
                self._opened += 1
                self._numbers[descriptor] = self._opened
                self._record(Recorded(OpenFile(self._opened, self._name(path))))
        return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            if (number := self._numbers.pop(descriptor, None)) is not None:
                self._record(Recorded(Closed(number)))
            if (whole := self._whole.pop(descriptor, None)) is not None:
                self._note_whole(*whole)
        self._files.close(descriptor)

    def _note_whole(self, path: Path, data: bytearray) -> None:
        if path.name.endswith(_NEW):
            self._new[path] = bytes(data)
        else:
            self._record(Recorded(Replace(self._name(path), len(data)), bytes(data)))

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        written = self._files.write_at(descriptor, buffers, offset)
        if written >= _LARGE and self._note_large(descriptor, buffers, offset, written):
            return written
        with self._lock:
            if (number := self._numbers.get(descriptor)) is not None:
                data = b"".join(buffers)[:written]
                self._record(Recorded(Write(number, offset, written), data))
            elif (whole := self._whole.get(descriptor)) is not None:
                whole[1][offset:] = b"".join(buffers)[:written]
        return written

    def _note_large(self, descriptor: int, buffers: Buffers, offset: int, written: int) -> bool:
        """Record a large write without copying it as a whole, because that would cost as much as writing it."""
        if written != sum(map(len, buffers)):
            return False
        data, *rest = join_small(buffers)
        with self._lock:
            if (number := self._numbers.get(descriptor)) is None:
                return False
            self._record(Recorded(Write(number, offset, written), data, rest))
        return True

    def truncate(self, descriptor: int, size: int) -> None:
        self._files.truncate(descriptor, size)
        with self._lock:
            if (number := self._numbers.get(descriptor)) is not None:
                self._record(Recorded(Cut(number, size)))

    def rename(self, source: Path, target: Path) -> None:
        self._files.rename(source, target)
        with self._lock:
            if (data := self._new.pop(source, None)) is not None:
                self._record(Recorded(Replace(self._name(target), len(data)), data))
            elif self._is_ours(source) and self._is_ours(target):
                self._record(Recorded(Rename(self._name(source), self._name(target))))
            elif self._is_ours(source):
                self._record(Recorded(Remove(self._name(source))))

    def unlink(self, path: Path) -> None:
        self._files.unlink(path)
        self._note_removed(path)

    def remove_folder(self, path: Path) -> None:
        self._files.remove_folder(path)
        self._note_removed(path)

    def _note_removed(self, path: Path) -> None:
        with self._lock:
            if self._new.pop(path, None) is None and self._is_ours(path):
                self._record(Recorded(Remove(self._name(path))))

    def make_folder(self, path: Path) -> None:
        self._files.make_folder(path)
        with self._lock:
            if self._is_ours(path):
                self._record(Recorded(MakeFolder(self._name(path))))

    def _is_ours(self, path: Path) -> bool:
        return path != self._folder and path.is_relative_to(self._folder) and is_shipped(path)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._folder))

    # Calls that change nothing that lasts

    def open_to_read(self, path: Path) -> int:
        return self._files.open_to_read(path)

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        return self._files.read_at(descriptor, size, offset)

    def read_cached_at(self, descriptor: int, size: int, offset: int) -> bytes:
        return self._files.read_cached_at(descriptor, size, offset)

    def size(self, descriptor: int) -> int:
        return self._files.size(descriptor)

    def size_of(self, path: Path) -> int:
        return self._files.size_of(path)

    def sync(self, descriptor: int) -> None:
        self._files.sync(descriptor)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        self._files.allocate(descriptor, offset, size)

    def free_bytes(self, folder: Path) -> int:
        return self._files.free_bytes(folder)

    def total_bytes(self, folder: Path) -> int:
        return self._files.total_bytes(folder)

    def names_in(self, path: Path) -> list[str]:
        return self._files.names_in(path)

    def exists(self, path: Path) -> bool:
        return self._files.exists(path)

    def identity_of(self, path: Path) -> tuple[int, int]:
        return self._files.identity_of(path)

    def modified_at(self, path: Path) -> int:
        return self._files.modified_at(path)

    def touch(self, path: Path) -> None:
        self._files.touch(path)

    def is_writable(self, path: Path) -> bool:
        return self._files.is_writable(path)

    def sync_folder(self, path: Path) -> None:
        self._files.sync_folder(path)

    def lock_folder(self, path: Path) -> int:
        return self._files.lock_folder(path)


def join_small(buffers: Iterable[bytes]) -> list[bytes]:
    """Return the same bytes in few buffers, none of which is empty: large ones are not copied, small ones are joined."""
    found: list[bytes] = []
    small: list[bytes] = []
    for buffer in buffers:
        if len(buffer) < _LARGE:
            small.append(buffer)
            continue
        found += (b"".join(small), buffer) if small else (buffer,)
        small = []
    found.append(b"".join(small))
    return [it for it in found if it]


def _is_whole(path: Path) -> bool:
    return path.name.removesuffix(_NEW).endswith(_WHOLE)
