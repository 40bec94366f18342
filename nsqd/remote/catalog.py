"""Which files a node has at a place of its chain, and where in the store each of their bytes is.

A catalog begins as a root and repeats the operations of slots. It is the same for an owner, who repeats what it sends,
and for a claimant, who repeats what it reads. For example, a file after a root with 100 bytes in a fold, and a slot that
appended 20:

    topics/t.orders/00000000.log   size 120   [0, 100) fold/7/0001 at 4000   [100, 120) wal/8/00000003 at 91

Files are what a file system would have after these operations: a file that is open keeps its number when its name
changes, and writes to a removed file are in no file any more.

A new root must not need slots, because these are what it makes unnecessary. So the bytes that only slots have are written
into folds first: `plan_fold` says which.

A file that grows slowly gets a part with each root. Readers want few parts, and writing the whole file each time would cost
the more, the larger it is. So new bytes are written together with the parts before them that are no larger. For example, a
file that grows by a byte with each root:

    root 1   [ 1 ]
    root 2   [  2  ]
    root 3   [  2  ][ 1 ]
    root 4   [     4     ]
    root 5   [     4     ][ 1 ]

So a byte is written a dozen times at most, and a file has at most a dozen parts more than its size needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from google_crc32c import value as crc32c

from nsqcommon.remote.framing import BadObject
from nsqcommon.remote.names import SLOTS, Run, fold_name, slot_name
from nsqcommon.remote.operations import (
    Commit,
    Cut,
    MakeFolder,
    OpenFile,
    Operation,
    Remove,
    Rename,
    Replace,
    UseBlob,
    Write,
    body_length,
)
from nsqcommon.remote.root import FileEntry, FilePart, Root, SealedSegment

if TYPE_CHECKING:
    from nsqcommon.remote.slot import Slot

MOST_FOLD: Final = 8 << 20  # bytes; no object is larger than a slot, so that a slow line brings either over
FULL_PART: Final = MOST_FOLD // 2  # bytes; a part of this size isn't written again
_LOG_JSON: Final = "/log.json"
UNSENT: Final = f"{SLOTS}unsent"  # in the place of an object: the bytes are on the disk only


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of which only [start, stop) is in the file, because the rest was cut or written over."""

    part: FilePart
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        return self.length == self.part.length

    @property
    def is_in_slot(self) -> bool:
        return self.part.object.startswith(SLOTS)


@dataclass(eq=False, slots=True)
class CatalogFile:
    pieces: list[Piece] = field(default_factory=list)
    size: int = 0

    @property
    def is_in_slots(self) -> bool:
        """Whether some of its bytes are in slots, so that no root has proved that they are on the disk."""
        return any(it.is_in_slot for it in self.pieces)

    def write(self, offset: int, part: FilePart) -> None:
        if offset > self.size:
            self.cut(offset)
        end = offset + part.length
        after = self._from(end) if end < self.size else []
        self._shorten(offset)
        self.pieces += [Piece(part, 0, part.length), *after] if part.length else after
        self.size = max(self.size, end)

    def cut(self, size: int) -> None:
        """Make the file shorter, or longer with zeros."""
        if size > self.size:
            zeros = FilePart("", 0, size - self.size, 0)
            self.pieces.append(Piece(zeros, 0, zeros.length))
        else:
            self._shorten(size)
        self.size = size

    def replace(self, part: FilePart) -> None:
        self.pieces, self.size = [], 0
        self.write(0, part)

    def _shorten(self, size: int) -> None:
        """Drop the pieces from `size` on, of which the last may be cut in two."""
        excess = self.size - size
        while excess > 0:
            last = self.pieces.pop()
            if last.length > excess:
                self.pieces.append(Piece(last.part, last.start, last.stop - excess))
            excess -= last.length

    def _from(self, offset: int) -> list[Piece]:
        return _cut_out(self.pieces, offset, self.size)


def _pieces_of(entry: FileEntry) -> list[Piece]:
    return [Piece(it, 0, it.length) for it in entry.parts]


def _cut_out(pieces: Iterable[Piece], start: int, stop: int) -> list[Piece]:
    """Return the pieces of [start, stop), of which the first and the last may be parts of those here."""
    found: list[Piece] = []
    begin = 0
    for piece in pieces:
        end = begin + piece.length
        if end > start and begin < stop:
            found.append(Piece(piece.part, piece.start + max(0, start - begin), piece.stop - max(0, end - stop)))
        begin = end
    return found


def _rebased(now: Iterable[Piece], before: Iterable[Piece], rooted: Sequence[Piece]) -> Iterator[Piece]:
    """Yield the pieces of a file, but those that are `before`'s bytes as `rooted` has them.

    A byte never moves within a file. So a piece that is now at the same place as before has the same bytes.
    """
    known: defaultdict[tuple[FilePart, int], list[Piece]] = defaultdict(list)
    place = 0
    for piece in before:
        known[piece.part, place - piece.start].append(piece)
        place += piece.length
    place = 0
    for piece in now:
        same = known.get((piece.part, place - piece.start), ())
        if any(it.start <= piece.start and piece.stop <= it.stop for it in same):
            yield from _cut_out(rooted, place, place + piece.length)
        else:
            yield piece
        place += piece.length


Snapshot: TypeAlias = Mapping[str, tuple[CatalogFile, tuple[Piece, ...]]]


class Catalog:
    """The files of a node, repeated from operations."""

    def __init__(self, root: Root) -> None:
        self.node = root.node
        self.root = root
        self.files: dict[str, CatalogFile] = {}
        self.folders: set[str] = set()
        self.sealed: tuple[SealedSegment, ...] = root.sealed
        self.committed: Run | None = None  # the newest root that the slots have committed
        self.objects = root.objects()  # that this root or a slot since has named
        self.removed: set[str] = set()  # paths that were taken away since this root, and aren't there
        self.former_logs: dict[str, list[CatalogFile]] = {}  # by path: each log.json that was there since, but not now
        self._open: dict[int, CatalogFile] = {}
        for path, entry in root.files.items():
            self.files[path] = CatalogFile(_pieces_of(entry), entry.size)

    def begin_run(self) -> None:
        """Forget the numbers of open files, which mean nothing in the next run."""
        self._open.clear()

    def apply(self, slot: Slot, body: memoryview, body_start: int) -> None:
        """Repeat the operations of the next slot. Raises BadObject if they don't fit the files.

        `body_start`: where in the object the body begins.
        """
        name = slot_name(slot.run, slot.number)
        for operation, start, data in slot.split(body):
            part = FilePart(name, body_start + start, len(data), crc32c(bytes(data)))
            self._apply(operation, part)

    def apply_sent(self, slot: Slot, crcs: Sequence[int], body_start: int) -> None:
        """Do the same for a slot of our own, given the checksums of each operation's bytes."""
        self._apply_all(slot.operations, crcs, slot_name(slot.run, slot.number), body_start)

    def apply_unsent(self, operations: Sequence[Operation], crcs: Sequence[int]) -> None:
        """Repeat operations that will be in no slot, because too much was waiting while the store was away.

        Their bytes are in the local files only. The next root has to have them before the chain can go on.
        """
        self._apply_all(operations, crcs, UNSENT, 0)

    def _apply_all(self, operations: Sequence[Operation], crcs: Sequence[int], name: str, start: int) -> None:
        for operation, crc in zip(operations, crcs, strict=True):
            length = body_length(operation)
            self._apply(operation, FilePart(name, start, length, crc))
            start += length

    def _apply(self, operation: Operation, part: FilePart) -> None:
        match operation:
            case Write(number, offset):
                self._opened(number).write(offset, part)
            case OpenFile(number, path):
                self._open[number] = self.files.get(path) or self._new_file(path)
            case Cut(number, size):
                self._opened(number).cut(size)
            case Replace(path):
                self._new_file(path).replace(part)  # a rename on disk: the former one stays open where it is
            case UseBlob(path, blob, size, crc):
                self.objects.add(blob)
                self._new_file(path).replace(FilePart(blob, 0, size, crc))
            case Rename(source, target):
                self._rename(source, target)
            case Remove(path):
                self._remove(path)
            case MakeFolder(path):
                self.folders.add(path)
            case Commit(run):
                self.committed = run

    # Roots

    def snapshot(self) -> Snapshot:
        """Return which bytes each file has at this place. Slots that come later don't change it."""
        return {path: (file, tuple(file.pieces)) for path, file in self.files.items()}

    def rebase(self, snapshot: Snapshot, root: Root) -> None:
        """Refer to this root, which was made from the snapshot, instead of what it replaces.

        A file may have been cut or written over since. What is left of the snapshot's bytes refers to the root all the same,
        because the objects that had them may go.
        """
        for path, (file, pieces) in snapshot.items():
            count = len(pieces)
            rooted = _pieces_of(root.files[path])
            if tuple(file.pieces[:count]) == pieces:
                file.pieces[:count] = rooted
            else:
                file.pieces = list(_rebased(file.pieces, pieces, rooted))
        self.objects = root.objects() | (self.objects - self.root.objects())
        self.root = root
        self.removed.clear()  # only a start needs them, and an owner may remove segments for years
        self.former_logs.clear()

    def _new_file(self, path: str) -> CatalogFile:
        self._keep_former_log(path)
        self.removed.discard(path)
        self.files[path] = file = CatalogFile()
        return file

    def _keep_former_log(self, path: str) -> None:
        """Keep what this log.json was up to now, because a power cut may bring the folder of a deleted topic back."""
        if path.endswith(_LOG_JSON) and path in self.files:
            self.former_logs.setdefault(path, []).append(self.files[path])

    def _opened(self, number: int) -> CatalogFile:
        try:
            return self._open[number]
        except KeyError:
            raise BadObject(f"a slot writes to file {number}, which it hasn't opened") from None

    def _rename(self, source: str, target: str) -> None:
        moved = {path: target + path.removeprefix(source) for path in self._within(source)}
        files = {new: self.files[path] for path, new in moved.items()}
        folders = {target + path.removeprefix(source) for path in self._folders_within(source)}
        self._remove(source)
        self._remove(target)
        self.files |= files
        self.removed -= files.keys()
        self.folders |= folders

    def _remove(self, path: str) -> None:
        for it in self._within(path):
            self._keep_former_log(it)
            del self.files[it]
            self.removed.add(it)
        self.folders -= self._folders_within(path)

    def _within(self, path: str) -> list[str]:
        if path in self.files:
            return [path]
        return [it for it in self.files if it.startswith(f"{path}/")]

    def _folders_within(self, path: str) -> set[str]:
        return {it for it in self.folders if it == path or it.startswith(f"{path}/")}


# A new root


def unsent_files(snapshot: Snapshot) -> list[str]:
    """Return the files of which some bytes are on the disk only."""
    return [path for path, (_, pieces) in snapshot.items() if any(it.part.object == UNSENT for it in pieces)]


@dataclass(frozen=True, slots=True)
class FileToFold:
    """The bytes [start, size) of a file have to be written into folds; `kept` covers the bytes before."""

    path: str
    kept: tuple[FilePart, ...]
    start: int
    size: int
    pieces: tuple[Piece, ...]  # what the bytes from `start` on have to be, as far as parts prove it


def plan_fold(snapshot: Snapshot, *, dead: Iterable[str] = ()) -> list[FileToFold]:
    """Return every file of the snapshot, with what of it has to be written for a new root.

    `dead`: folds of which so little is needed that they should go.
    """
    dead_objects = frozenset(dead)
    return [_plan_file(path, pieces, dead_objects) for path, (_, pieces) in sorted(snapshot.items())]


def _plan_file(path: str, pieces: Sequence[Piece], dead: frozenset[str]) -> FileToFold:
    kept: list[FilePart] = []
    for piece in pieces:
        name = piece.part.object
        if not piece.is_whole or name.startswith(SLOTS) or name in dead:
            break
        kept.append(piece.part)
    size = sum(it.length for it in pieces)
    start = sum(it.length for it in kept)
    while kept and kept[-1].length <= min(size - start, FULL_PART):
        start -= kept.pop().length
    return FileToFold(path, tuple(kept), start, size, tuple(pieces[len(kept) :]))


def prove_range(pieces: Sequence[Piece], data: bytes) -> bool:
    """Return whether local bytes are what was written, as far as whole parts can tell."""
    offset = 0
    for piece in pieces:
        found = data[offset : offset + piece.length]
        if piece.is_whole and piece.part.object and crc32c(found) != piece.part.crc:
            return False
        offset += piece.length
    return offset == len(data)


class FoldWriter:
    """Puts the bytes of many files into as few objects as possible, and makes the root of the result."""

    def __init__(self, node: str, run: Run, sealed: tuple[SealedSegment, ...] = ()) -> None:
        self._node = node
        self._run = run
        self._sealed = sealed
        self._files: dict[str, FileEntry] = {}
        self._buffers: list[bytes] = []
        self._size = 0
        self._number = 1
        self.full: list[tuple[str, list[bytes]]] = []  # finished folds, for the caller to create and take away

    def add(self, file: FileToFold, data: bytes) -> None:
        """Take a file whose bytes from `start` on are `data`, which were proved."""
        self.add_blocks(file, (data[start : start + MOST_FOLD] for start in range(0, len(data), MOST_FOLD)))

    def add_blocks(self, file: FileToFold, blocks: Iterable[bytes]) -> None:
        """Do the same with bytes that come in blocks of at most MOST_FOLD, so that a large file is never in memory."""
        parts = [*file.kept, *map(self._put, blocks)]
        assert sum(it.length for it in parts) == file.size
        self._files[file.path] = FileEntry(file.size, tuple(parts))

    def finish(self) -> Root:
        """Finish the last fold, and return the root. Everything in `full` has to be stored before it."""
        self._close()
        return Root(self._node, self._run, self._files, self._sealed)

    def _put(self, data: bytes) -> FilePart:
        if self._size + len(data) > MOST_FOLD:
            self._close()
        part = FilePart(self._name, self._size, len(data), crc32c(data))
        self._buffers.append(data)
        self._size += len(data)
        return part

    @property
    def _name(self) -> str:
        return fold_name(self._run, self._number)

    def _close(self) -> None:
        if self._buffers:
            self.full.append((self._name, self._buffers))
            self._buffers, self._size = [], 0
            self._number += 1


def mostly_dead(snapshot: Snapshot, sizes: Mapping[str, int]) -> list[str]:
    """Return the folds of which less than half is needed, given the size of each."""
    alive = dict.fromkeys(sizes, 0)
    for _, pieces in snapshot.values():
        for piece in pieces:
            if piece.part.object in alive:
                alive[piece.part.object] += piece.length
    return [name for name, size in sizes.items() if 2 * alive[name] < size]
