"""Replays on the simulated disk what `shim.c` has recorded of a process, up to the moment of a power cut.

The simulated disk (`disk.py`) knows what survives: it keeps for each file which pages are durable and for each folder
which names, and is harsher than real file systems wherever POSIX lets it. So a trace of a real nsqd becomes data paths
as a power cut may have left them at any moment of its life.

A sync makes durable what was written before it began, and only once it has ended; its two ends are two records.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from copy import deepcopy
from enum import IntEnum
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.simulation.disk import DATA_PATH, Crash, File, Folder, SimulatedDisk

_HEAD: Final = struct.Struct("=QIiQII")  # as in shim.c


class Kind(IntEnum):
    OPEN = 1
    CLOSE = 2
    WRITE = 3
    TRUNCATE = 4
    SYNC_BEGIN = 5
    SYNC_END = 6
    RENAME = 7
    UNLINK = 8
    MKDIR = 9
    RMDIR = 10


class Event(NamedTuple):
    at: float  # as time.monotonic() counts
    kind: Kind
    descriptor: int
    number: int  # flags, an offset, a size, or the number of a sync
    path: Path
    data: bytes


def read_trace(path: Path) -> Iterator[Event]:
    """Return all events. An event that a kill has cut off at the end did not happen."""
    data = memoryview(path.read_bytes())
    position = 0
    while position + _HEAD.size <= len(data):
        at, kind, descriptor, number, path_size, data_size = _HEAD.unpack_from(data, position)
        start = position + _HEAD.size
        end = start + path_size + data_size
        if end > len(data):
            return
        name = bytes(data[start : start + path_size]).decode()
        yield Event(at / 1e9, Kind(kind), descriptor, number, DATA_PATH / name, bytes(data[start + path_size : end]))
        position = end


class _FileSync:
    """Makes durable what the file held when this sync began."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._began = deepcopy(file)

    def end(self, disk: SimulatedDisk) -> None:
        file, began = self._file, self._began
        synced = set(began.dirty)
        began.sync()
        file.durable = began.durable
        file.dirty = {page for page in file.dirty if page not in synced or file.page(page) != began.page(page)}


class _FolderSync:
    """Makes durable the names that the folder held when this sync began."""

    def __init__(self, folder: Folder, disk: SimulatedDisk) -> None:
        self._folder = folder
        self._changes = disk.unsynced_changes()

    def end(self, disk: SimulatedDisk) -> None:
        disk.make_names_durable(self._folder, self._changes)


class Replay:
    """A disk on which the calls of a process are repeated.

    Two syncs of one file do not overlap: nsqd syncs in one thread.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.disk = SimulatedDisk()
        self._events = deque(events)
        self._descriptors: dict[int, int] = {}  # descriptor of the process -> of the simulated disk
        self._folders: dict[int, Folder] = {}
        self._syncs: dict[int, _FileSync | _FolderSync] = {}

    def play_until(self, moment: float) -> None:
        while self._events and self._events[0].at <= moment:
            self._play(self._events.popleft())

    def cut(self, crash: Crash, random: Random, target: Path) -> None:
        """Write to `target` what this power cut leaves. The replay may go on afterwards."""
        left = deepcopy(self.disk)
        left.crash(crash, random)
        _write_out(left.find(DATA_PATH), target)

    def _play(self, event: Event) -> None:
        disk, path = self.disk, event.path
        match event.kind:
            case Kind.OPEN:
                self._open(event)
            case Kind.CLOSE:
                self._close(event.descriptor)
            case Kind.WRITE:
                disk.write_at(self._descriptors[event.descriptor], [event.data], event.number)
            case Kind.TRUNCATE:
                disk.truncate(self._descriptors[event.descriptor], event.number)
            case Kind.SYNC_BEGIN:
                self._syncs[event.number] = self._begin_sync(event.descriptor)
            case Kind.SYNC_END:
                self._syncs.pop(event.number).end(disk)
            case Kind.RENAME:
                disk.rename(path, DATA_PATH / event.data.decode())
            case Kind.UNLINK:
                disk.unlink(path)
            case Kind.MKDIR:
                disk.make_folder(path)
            case Kind.RMDIR:
                disk.remove_folder(path)

    def _open(self, event: Event) -> None:
        found = self.disk.find(event.path)
        if isinstance(found, Folder):
            self._folders[event.descriptor] = found
        elif event.number & (os.O_RDWR | os.O_WRONLY):
            self._descriptors[event.descriptor] = self.disk.open_to_write(event.path)
        else:
            self._descriptors[event.descriptor] = self.disk.open_to_read(event.path)

    def _close(self, descriptor: int) -> None:
        if self._folders.pop(descriptor, None) is None:
            self.disk.close(self._descriptors.pop(descriptor))

    def _begin_sync(self, descriptor: int) -> _FileSync | _FolderSync:
        folder = self._folders.get(descriptor)
        if folder is not None:
            return _FolderSync(folder, self.disk)
        return _FileSync(self.disk.file_of(self._descriptors[descriptor]))


def _write_out(node: File | Folder | None, target: Path) -> None:
    if isinstance(node, Folder):
        target.mkdir()
        for name, inner in node.entries.items():
            _write_out(inner, target / name)
    elif node is not None:
        target.write_bytes(node.data)
