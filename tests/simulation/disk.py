"""A disk in memory that fails, fills up, stops, and forgets what was not synced.

It stands in the place of `nsqd.log.files.Files`. Of each file it knows what the page cache holds and what is durable, of
each folder which names are durable; `crash` takes away what the end of a process or of the power takes away.

It is harsher than a real file system wherever POSIX lets it: syncing a file says nothing of its name, a folder that was
not synced loses what is in it, pages reach the disk in any order, and a failed sync leaves pages that count as clean and
are nowhere. Only a rename is never half done, and what is unlinked in one folder goes in that order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from nsqd.log.files import MOST_BUFFERS, Buffers, Files

PAGE: Final = 4096
DATA_PATH: Final = Path("/data")

# The calls after which a crash may leave something else than before them.
CHANGING: Final = frozenset(
    ("create", "write", "truncate", "sync", "rename", "link", "unlink", "make folder", "remove folder", "sync folder")
)


class Crash(StrEnum):
    KILL = "kill"  # the process ends, the machine keeps running: everything stays
    # The power is cut, and of what was not synced
    FORGETS_ALL = "power cut, forgets all"  # nothing stays
    FORGETS_LATEST = "power cut, forgets the latest"  # a beginning of each file stays, and the first changes of names
    FORGETS_ANY = "power cut, forgets any"  # any pages and any changes of names stay

    @property
    def is_power_cut(self) -> bool:
        return self is not Crash.KILL


class Stopped(BaseException):
    """The machine has stopped at this call. No error handler may go on from here."""


class Call(NamedTuple):
    number: int
    kind: str
    path: Path

    def __str__(self) -> str:
        return f"call {self.number}: {self.kind} {self.path}"


class File:
    """The contents in the page cache, the durable contents, and the pages that have to be written back."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()
        self.dropped: set[int] = set()  # pages that a failed sync has left clean and not durable
        self.allocated = 0  # space is reserved up to here, whatever the file's size

    @property
    def space(self) -> int:
        return max(len(self.data), self.allocated)

    def page(self, number: int) -> bytes:
        return bytes(self.data[number * PAGE : (number + 1) * PAGE])

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        if offset > len(self.data):
            self._touch(len(self.data), offset)
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self._touch(offset, offset + len(data))

    def truncate(self, size: int) -> None:
        self.allocated = 0
        before = len(self.data)
        if size > before:
            self.data.extend(bytes(size - before))
            self._touch(before, size)
        else:
            del self.data[size:]
            self.dirty = {page for page in self.dirty if page * PAGE < size}

    def _touch(self, start: int, end: int) -> None:
        pages = range(start // PAGE, (end - 1) // PAGE + 1)
        self.dirty.update(pages)
        self.dropped.difference_update(pages)

    def sync(self) -> None:
        for page in self.dirty:
            self._write_back(self.durable, page)
        del self.durable[len(self.data) :]
        self.durable.extend(bytes(len(self.data) - len(self.durable)))
        self.dirty.clear()

    def fail_to_sync(self, random: Random, *, drops_pages: bool) -> None:
        """Write some pages; the others count as clean, and may leave memory at once."""
        for page in sorted(self.dirty):
            if random.random() < 0.5:
                self._write_back(self.durable, page)
            else:
                self.dropped.add(page)
        self.dirty.clear()
        if drops_pages and random.random() < 0.5:
            size = len(self.data)
            self.data = self.durable[:size].ljust(size, b"\0")

    def forget_failures(self) -> None:
        """Forget failed syncs: another process cannot know of them, so it is not expected to repeat them."""
        self.dirty |= {page for page in self.dropped if page * PAGE < len(self.data)}
        self.dropped.clear()

    def _write_back(self, target: bytearray, page: int) -> None:
        start = page * PAGE
        target.extend(bytes(max(0, start - len(target))))
        target[start : start + PAGE] = self.data[start : start + PAGE]

    def lose_power(self, crash: Crash, random: Random) -> None:
        left = bytearray(self.durable)
        if crash is not Crash.FORGETS_ALL:
            self._keep_some(left, crash, random)
        self.data, self.durable = left, bytearray(left)
        self.dirty.clear()

    def _keep_some(self, left: bytearray, crash: Crash, random: Random) -> None:
        size, pages = len(self.data), sorted(self.dirty)
        if crash is Crash.FORGETS_ANY:
            kept = [page for page in pages if random.random() < 0.5]
        else:
            kept = pages[: random.randint(0, len(pages))]
        for page in kept:
            self._write_back(left, page)
        if size < len(self.durable):
            if random.random() < 0.5:
                del left[size:]
        elif crash is Crash.FORGETS_LATEST and len(left) > len(self.durable):
            before = max(kept[-1] * PAGE, len(self.durable))
            del left[random.randint(before, len(left)) :]  # the last page has the contents of some writes ago
        elif random.random() < 0.3:
            left.extend(bytes(size - len(left)))  # the size was written, the pages were not


class Folder:
    def __init__(self) -> None:
        self.entries: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}


class _Entry(NamedTuple):
    folder: Folder
    name: str
    node: File | Folder | None


NameChange = tuple[_Entry, ...]  # changes of names that happen together


@dataclass
class Failure:
    """Which calls fail from now on, and how."""

    code: int
    kinds: frozenset[str]
    matches: Callable[[Call], bool]
    bytes_written: int = 0  # by a failing write


@dataclass
class Open:
    node: File | Folder
    path: Path
    writes: bool = False


@dataclass
class SimulatedDisk(Files):
    random: Random = field(default_factory=lambda: Random(0))
    capacity: int | None = None  # of the disk, in bytes of files
    stop_at: int | None = None  # the number of the call at which the machine stops
    torn: float = 0.0  # the share of an interrupted write that reaches the page cache
    syncs_files: bool = True  # False: fdatasync does nothing, and says that all is well
    drops_pages: bool = True  # after a failed sync, pages that were not written back soon leave memory, too
    most_per_write: int | None = None
    uncached: float = 0.0  # the share of reads that do not find their data in the page cache

    def __post_init__(self) -> None:
        self.number = 0  # number of the last call
        self.failed_syncs = 0  # failed syncs of files
        self.calls: list[Call] = []
        self.on_call: Callable[[Call], None] = lambda call: None
        self._failures: list[Failure] = []
        self._root = Folder()
        self._changes: list[NameChange] = []  # changes of names that are not durable
        self._open: dict[int, Open] = {}
        self._next_descriptor = 3
        self._locked: list[Folder] = []
        root: Folder = self._root
        for part in DATA_PATH.parts[1:]:
            folder = Folder()
            root.entries[part] = root.durable[part] = folder
            root = folder

    # Called by tests

    def fail(
        self, code: int, *kinds: str, matches: Callable[[Call], bool] = lambda call: True, bytes_written: int = 0
    ) -> None:
        """Let calls of these kinds fail until `heal`; no kinds: all calls."""
        self._failures.append(Failure(code, frozenset(kinds), matches, bytes_written))

    def fail_at(self, number: int, code: int, *, bytes_written: int = 0) -> None:
        self.fail(code, matches=lambda call: call.number == number, bytes_written=bytes_written)

    def heal(self) -> None:
        self._failures.clear()
        self.capacity = None

    def crash(self, crash: Crash, random: Random) -> None:
        """Crash, and leave what a machine finds when it starts again. Nothing is open, fails or stops any more."""
        self.heal()
        self.stop_at = None
        self._open.clear()
        self._locked.clear()
        if not crash.is_power_cut:
            for file in _files_in(self._root):
                file.forget_failures()
            return
        for change in self._kept_changes(crash, random):
            _apply(change)
        self._changes.clear()
        _lose_power(self._root, crash, random, set())

    def _kept_changes(self, crash: Crash, random: Random) -> list[NameChange]:
        changes = self._changes
        if crash is Crash.FORGETS_ALL:
            return []
        if crash is Crash.FORGETS_LATEST:
            return changes[: random.randint(0, len(changes))]
        # The order is random, but removals keep theirs: readers rely on the oldest segment going first. And the
        # name of a folder that still exists cannot become another's: no file system replaces a folder with files.
        kept: list[NameChange] = []
        forgotten: list[Folder] = []
        taken: list[tuple[Folder, str]] = []
        for change in changes:
            removes = len(change) == 1 and change[0].node is None
            needs_forgotten = (removes and change[0].folder in forgotten) or any(entry[:2] in taken for entry in change)
            if needs_forgotten or random.random() < 0.5:
                forgotten += [change[0].folder] if removes else []
                if any(isinstance(entry.node, Folder) for entry in change):
                    taken += [entry[:2] for entry in change if entry.node is None]
            else:
                kept.append(change)
        return kept

    @property
    def used(self) -> int:
        opened = {entry.node for entry in self._open.values()}
        return sum(file.space for file in {*_files_in(self._root), *opened} if isinstance(file, File))

    def paths(self) -> list[Path]:
        """Return all files, by name."""
        return sorted(_paths_in(self._root, Path("/")))

    def peek(self, path: Path) -> bytes:
        """Return the contents of a file, without a call of the disk."""
        return bytes(self._file(path).data)

    def find(self, path: Path) -> File | Folder | None:
        """Return what has this name, without a call of the disk."""
        return self._find(path)

    def file_of(self, descriptor: int) -> File:
        return self._opened_file(descriptor)[0]

    def unsynced_changes(self) -> list[NameChange]:
        return list(self._changes)

    def make_names_durable(self, folder: Folder, changes: Iterable[NameChange]) -> None:
        """Make these changes of names durable, as far as they touch the folder."""
        wanted = {id(change) for change in changes if any(entry.folder is folder for entry in change)}
        unsynced: list[NameChange] = []
        for change in self._changes:
            if id(change) in wanted:
                _apply(change)
            else:
                unsynced.append(change)
        self._changes = unsynced

    def open_descriptors(self) -> list[Path]:
        return [entry.path for entry in self._open.values()]

    # Steps of every call

    def _call(self, kind: str, path: Path) -> Call:
        """Count the call, and raise the error with which it is to fail.

        A write does not raise here, because a part of it may happen first.
        """
        call = self._count(kind, path)
        if self._stops(call):
            raise Stopped(str(call))
        if (failure := self._failure_of(call)) is not None:
            raise _error(failure.code, path)
        return call

    def _count(self, kind: str, path: Path) -> Call:
        self.number += 1
        call = Call(self.number, kind, path)
        self.calls.append(call)
        self.on_call(call)
        return call

    def _stops(self, call: Call) -> bool:
        return self.stop_at is not None and call.number >= self.stop_at

    def _failure_of(self, call: Call) -> Failure | None:
        for failure in self._failures:
            if (not failure.kinds or call.kind in failure.kinds) and failure.matches(call):
                return failure
        return None

    def _find(self, path: Path) -> File | Folder | None:
        node: File | Folder | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(part)
        return node

    def _folder(self, path: Path) -> Folder:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _file(self, path: Path) -> File:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, File):
            raise _error(errno.EISDIR, path)
        return node

    def _change(self, *entries: _Entry) -> None:
        for entry in entries:
            _set(entry.folder.entries, entry)
        self._changes.append(entries)

    def _opened(self, descriptor: int) -> Open:
        if descriptor not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._open[descriptor]

    def _opened_file(self, descriptor: int) -> tuple[File, Path]:
        opened = self._opened(descriptor)
        assert isinstance(opened.node, File)
        return opened.node, opened.path

    def _new_descriptor(self, node: File | Folder, path: Path, *, writes: bool = False) -> int:
        descriptor = self._next_descriptor
        self._next_descriptor += 1
        self._open[descriptor] = Open(node, path, writes)
        return descriptor

    # The interface of `nsqd.log.files.Files`

    def open_to_write(self, path: Path) -> int:
        folder = self._folder(path.parent)
        if path.name in folder.entries:
            self._call("open", path)
            return self._new_descriptor(self._file(path), path, writes=True)
        self._call("create", path)
        file = File()
        self._change(_Entry(folder, path.name, file))
        return self._new_descriptor(file, path, writes=True)

    def open_new(self, path: Path) -> int:
        if path.name in self._folder(path.parent).entries:
            raise _error(errno.EEXIST, path)
        return self.open_to_write(path)

    def open_to_read(self, path: Path) -> int:
        self._call("open to read", path)
        return self._new_descriptor(self._file(path), path)

    def close(self, descriptor: int) -> None:
        opened = self._opened(descriptor)
        del self._open[descriptor]
        if isinstance(opened.node, Folder):
            self._locked.remove(opened.node)
        self._call("close", opened.path)

    def write_at(self, descriptor: int, buffers: Buffers, offset: int) -> int:
        file, path = self._opened_file(descriptor)
        assert len(buffers) <= MOST_BUFFERS
        assert self._open[descriptor].writes
        data = b"".join(buffers)
        call = self._count("write", path)
        if self._stops(call):
            if call.number == self.stop_at:
                file.write(data[: int(len(data) * self.torn)], offset)
            raise Stopped(str(call))
        if (failure := self._failure_of(call)) is not None:
            file.write(data[: failure.bytes_written], offset)
            raise _error(failure.code, path)
        if self.most_per_write is not None:
            data = data[: self.most_per_write]
        if self.capacity is not None:
            room = max(0, self.capacity - self.used) + max(0, file.space - offset)
            if room == 0 and data:
                raise _error(errno.ENOSPC, path)
            data = data[:room]
        file.write(data, offset)
        return len(data)

    def read_at(self, descriptor: int, size: int, offset: int) -> bytes:
        file, path = self._opened_file(descriptor)
        self._call("read", path)
        return bytes(file.data[offset : offset + size])

    def read_cached_at(self, descriptor: int, size: int, offset: int) -> bytes:
        file, path = self._opened_file(descriptor)
        self._call("read cached", path)
        if self.uncached and self.random.random() < self.uncached:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return bytes(file.data[offset : offset + size])

    def size(self, descriptor: int) -> int:
        file, path = self._opened_file(descriptor)
        self._call("size", path)
        return len(file.data)

    def size_of(self, path: Path) -> int:
        self._call("size", path)
        return len(self._file(path).data)

    def sync(self, descriptor: int) -> None:
        file, path = self._opened_file(descriptor)
        call = self._count("sync", path)
        if self._stops(call):
            raise Stopped(str(call))
        if (failure := self._failure_of(call)) is not None:
            self.failed_syncs += 1
            file.fail_to_sync(self.random, drops_pages=self.drops_pages)
            raise _error(failure.code, path)
        if self.syncs_files:
            file.sync()

    def truncate(self, descriptor: int, size: int) -> None:
        file, path = self._opened_file(descriptor)
        self._call("truncate", path)
        file.truncate(size)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        file, path = self._opened_file(descriptor)
        self._call("allocate", path)
        if max(0, offset + size - file.space) > self.free_bytes(path.parent):
            raise _error(errno.ENOSPC, path)
        file.allocated = max(file.allocated, offset + size)

    def free_bytes(self, folder: Path) -> int:
        return max(0, self.total_bytes(folder) - self.used)

    def total_bytes(self, folder: Path) -> int:
        return self.capacity if self.capacity is not None else 1 << 40

    def rename(self, source: Path, target: Path) -> None:
        self._call("rename", source)
        node = self._find(source)
        if node is None:
            raise _error(errno.ENOENT, source)
        there = self._find(target)
        if isinstance(there, Folder) and there.entries:
            raise _error(errno.ENOTEMPTY, target)
        self._change(
            _Entry(self._folder(source.parent), source.name, None),
            _Entry(self._folder(target.parent), target.name, node),
        )

    def link(self, source: Path, target: Path) -> None:
        self._call("link", target)
        file, folder = self._file(source), self._folder(target.parent)
        if target.name in folder.entries:
            raise _error(errno.EEXIST, target)
        self._change(_Entry(folder, target.name, file))

    def unlink(self, path: Path) -> None:
        self._call("unlink", path)
        self._file(path)
        self._change(_Entry(self._folder(path.parent), path.name, None))

    def make_folder(self, path: Path) -> None:
        self._call("make folder", path)
        parent = self._folder(path.parent)
        if path.name in parent.entries:
            raise _error(errno.EEXIST, path)
        self._change(_Entry(parent, path.name, Folder()))

    def remove_folder(self, path: Path) -> None:
        """Remove a folder. Each name in it takes a call of its own, as on a real disk."""
        for name in self.names_in(path):
            if isinstance(self._find(path / name), Folder):
                self.remove_folder(path / name)
            else:
                self.unlink(path / name)
        self._call("remove folder", path)
        self._change(_Entry(self._folder(path.parent), path.name, None))

    def remove_empty_folder(self, path: Path) -> None:
        self._call("remove folder", path)
        if self._folder(path).entries:
            raise _error(errno.ENOTEMPTY, path)
        self._change(_Entry(self._folder(path.parent), path.name, None))

    def refresh_folder(self, path: Path) -> None:
        self._call("refresh folder", path)
        self._folder(path)

    def names_in(self, path: Path) -> list[str]:
        self._call("names", path)
        return sorted(self._folder(path).entries)

    def exists(self, path: Path) -> bool:
        self._call("exists", path)
        return self._find(path) is not None

    def identity_of(self, path: Path) -> tuple[int, int]:
        return 0, id(self._folder(path))

    def is_writable(self, path: Path) -> bool:
        return self._find(path) is not None

    def sync_folder(self, path: Path) -> None:
        self._call("sync folder", path)
        self.make_names_durable(self._folder(path), self._changes)

    def lock_folder(self, path: Path) -> int:
        self._call("lock", path)
        folder = self._folder(path)
        if folder in self._locked:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._locked.append(folder)
        return self._new_descriptor(folder, path)


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


def _set(names: dict[str, File | Folder], entry: _Entry) -> None:
    if entry.node is None:
        names.pop(entry.name, None)
    else:
        names[entry.name] = entry.node


def _apply(change: NameChange) -> None:
    for entry in change:
        _set(entry.folder.durable, entry)


def _lose_power(folder: Folder, crash: Crash, random: Random, seen: set[int]) -> None:
    folder.entries = dict(folder.durable)
    for name in sorted(folder.entries):
        node = folder.entries[name]
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Folder):
            _lose_power(node, crash, random, seen)
        else:
            node.lose_power(crash, random)


def _files_in(folder: Folder) -> Iterator[File]:
    for node in folder.entries.values():
        if isinstance(node, Folder):
            yield from _files_in(node)
        else:
            yield node


def _paths_in(folder: Folder, path: Path) -> Iterator[Path]:
    for name, node in folder.entries.items():
        if isinstance(node, Folder):
            yield from _paths_in(node, path / name)
        else:
            yield path / name
