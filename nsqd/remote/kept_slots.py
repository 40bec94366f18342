"""Slots that a claim has read, on the disk until the data path is settled, so that none of them is asked for twice.

A claim reads each slot since the root whole, because the slots say what the chain is. Afterwards `Fetch` needs the bytes of
files that are in them. On a busy node that is up to a gigabyte, and a takeover waits for it.

    claim: get wal/7/00000003 ──> keep          in files without a name, which are gone when this process is
    fetch: [91, 111) of it    <── get           or None: ask the store
    claim: get root/8         ──> keep          slots of earlier runs are given back
    a write of the data path finds a full disk ──> close

**Why a kept slot is as good as the store's.** The name of a slot is given once, and its bytes never change. `Fetch` proves
each part by the checksum that the claim took of the bytes it read, so a byte that the disk has spoilt is found, and the
store is asked for it.

**Why a slot may be served that was swept meanwhile.** Without these files the fetch would find it missing, and the claim
would begin again. With them the fetch succeeds, and the claim finds out a little later: it asks for the marks of all runs
of its path after each look, and after its fence. Whether fetched bytes are from a slot that still exists plays no part in
who owns the name. An owner that was verified has a path from which nothing was swept, and settles by the catalog of that
path, not by what it has fetched before. `nsqd remote restore` owns nothing: it gets the node as it was when the chain was
read to its end.

**Bounds.** Only large slots are kept: of the small ones requests cost more than bytes, and there may be very many. None is
kept of a writer that had this data path, because a restart needs next to nothing of what its disk has. A standby
reads on for days behind an owner that is well. So the oldest file is dropped when there are too many bytes, and the files
never have more bytes than stay free on the disk. A slot that isn't kept costs a request.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.names import ROOTS, SLOTS, run_in
from nsqd.log.files import close_quietly, error_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from nsqcommon.remote.names import Run
    from nsqd.log.files import Files

log = logging.getLogger(__name__)

SMALLEST: Final = 64 << 10  # bytes of a slot that is kept
FILE_SIZE: Final = 64 << 20
MOST_KEPT: Final = 2 << 30  # bytes; an owner makes a root after at most half of it


@dataclass(eq=False, slots=True)
class _KeptFile:
    descriptor: int
    size: int = 0
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # by name: where a slot begins, and its length


class KeptSlots:
    """Keeps what the claim's threads have read, until `close`. Any thread may call its methods, and none raises OSError."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        *,
        own: Collection[str] = (),
        most: int = MOST_KEPT,
        file_size: int = FILE_SIZE,
    ) -> None:
        """Keep up to `most` bytes in `folder`, in files of `file_size`. `own`: writers whose slots the data path has."""
        self._folder = folder
        self._disk = files
        self._own = own
        self._most = most
        self._file_size = file_size
        self._lock = Lock()
        self._files: list[_KeptFile] = []  # the oldest first; the last one is written to
        self._is_closed = False

    @property
    def size(self) -> int:
        """How many bytes of the disk these files have."""
        with self._lock:
            return self._size

    def keep(self, name: str, data: bytes) -> None:
        """Keep a slot. A root says that slots of runs before it are needed no more."""
        run = run_in(name)
        if run is None:
            return
        with self._lock:
            if name.startswith(ROOTS):
                self._drop_before(run)
            elif name.startswith(SLOTS) and run.writer not in self._own and SMALLEST <= len(data) <= self._most:
                self._keep(name, data)

    def get(self, name: str, start: int, end: int) -> bytes | None:
        """Return these bytes of a slot; None: ask the store. The disk may have damaged them."""
        with self._lock:
            file = self._file_with(name)
            if file is None:
                return None
            place, length = file.places[name]
            try:
                return self._disk.read_fully(file.descriptor, max(0, min(end, length) - start), place + start)
            except OSError as error:
                log.warning("asking the store again: %s", error_text("read", self._folder, error))
                del file.places[name]
                return None

    def drop(self, name: str) -> None:
        """Forget a slot, because the disk has damaged it."""
        with self._lock:
            if (file := self._file_with(name)) is not None:
                del file.places[name]

    def close(self) -> bool:
        """Give everything back, and keep nothing from now on. Return whether the disk has got room by that."""
        with self._lock:
            return self._close()

    # All of these are called with the lock

    @property
    def _size(self) -> int:
        return sum(it.size for it in self._files)

    def _file_with(self, name: str) -> _KeptFile | None:
        return next((it for it in self._files if name in it.places), None)

    def _keep(self, name: str, data: bytes) -> None:
        if self._is_closed or self._file_with(name) is not None:
            return
        try:
            file = self._file_for(len(data))
            if file is not None:
                self._disk.write_in_pieces(file.descriptor, [data], file.size)
                file.places[name] = file.size, len(data)
                file.size += len(data)
        except OSError as error:
            # The files of the data path will need the room more than we do.
            log.info("slots that are needed again come from the store: %s", error_text("write", self._folder, error))
            self._close()

    def _file_for(self, length: int) -> _KeptFile | None:
        """Return the file that has room for a slot of this length; None: the disk has too little room for more."""
        while self._size + length > self._most:
            self._drop_oldest()
        if self._files and self._files[-1].size + length <= self._file_size:
            return self._files[-1]
        needed = max(length, self._file_size)
        if self._disk.free_bytes(self._folder) < self._size + 2 * needed:
            return None
        self._files.append(_KeptFile(self._disk.open_unnamed(self._folder)))
        return self._files[-1]

    def _drop_before(self, root: Run) -> None:
        for file in list(self._files):
            for name in [it for it in file.places if _is_before(it, root)]:
                del file.places[name]
            if not file.places:
                self._files.remove(file)
                close_quietly(self._disk, file.descriptor)

    def _drop_oldest(self) -> None:
        close_quietly(self._disk, self._files.pop(0).descriptor)

    def _close(self) -> bool:
        had_any = bool(self._files)
        self._is_closed = True
        while self._files:
            self._drop_oldest()
        return had_any


def _is_before(slot: str, root: Run) -> bool:
    run = run_in(slot)
    return run is not None and run.number < root.number


def keep_nothing(name: str, data: bytes) -> None:
    """Keep nothing, because this reader of the chain fetches no files."""
