"""What a recovered data path has that the store hasn't, and the other way round.

An owner that continues may have written more than it has sent. Recovery may have cut torn tails, and begun a journal. So
after the recovery the folder is compared with the catalog, and the chain begins with the difference.

The difference has to reach the store in one step, because half of it is no state of the files. For example, a log without
the entry of the journal that was written before it. If it is too large for a slot, it becomes a root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from nsqcommon.remote.operations import Cut, OpenFile, Remove, Replace, Write
from nsqcommon.remote.slot import MOST_BODY
from nsqd.remote.catalog import FileToFold
from nsqd.remote.other_logs import find_other_logs
from nsqd.remote.reconciliation import first_difference
from nsqd.remote.recorder import Recorded

if TYPE_CHECKING:
    from nsqcommon.remote.root import FilePart
    from nsqd.remote.catalog import Catalog, CatalogFile
    from nsqd.remote.local_files import LocalFiles

_WHOLE: Final = ".json"
_NUMBERS_FROM: Final = 1 << 40  # of files in the difference; the recorder counts from 1
_OPERATION: Final = 256  # bytes that an operation may take in a slot


@dataclass(frozen=True, slots=True)
class ChangedFile:
    path: str
    same: int  # bytes from its beginning that the store has
    size: int
    stored: int | None  # its size in the store; None: it has no such file


@dataclass(frozen=True, slots=True)
class Difference:
    changed: tuple[ChangedFile, ...]
    removed: tuple[str, ...]

    @property
    def size(self) -> int:
        """How much of a slot it takes."""
        operations = 3 * len(self.changed) + len(self.removed)
        return sum(_bytes_of(it) for it in self.changed) + _OPERATION * operations

    @property
    def fits_into_a_slot(self) -> bool:
        return self.size <= MOST_BODY

    def changes(self, local: LocalFiles) -> Iterator[Recorded]:
        """Yield what makes the store's files the local ones. Raises OSError."""
        for number, file in enumerate(self.changed, _NUMBERS_FROM):
            if file.path.endswith(_WHOLE):
                yield Recorded(Replace(file.path, file.size), local.read(file.path, 0, file.size))
                continue
            yield Recorded(OpenFile(number, file.path))
            if file.same < (file.stored or 0):
                yield Recorded(Cut(number, file.same))
            if file.same < file.size:
                data = local.read(file.path, file.same, file.size)
                yield Recorded(Write(number, file.same, len(data)), data)
        for path in self.removed:
            yield Recorded(Remove(path))


def find_difference(catalog: Catalog, local: LocalFiles) -> Difference:
    """Compare the data path with the catalog. Raises OSError.

    Not every byte is read. Bytes that are in a fold were synced before that root, and a finished file is only removed. So
    they are the store's, unless the topic was deleted and created again.
    """
    sizes = {path: size for path, size in local.shipped().items() if not _is_dropped(path) or path in catalog.files}
    growing, other_logs = _growing(sizes), find_other_logs(catalog, local)
    changed = []
    for path, size in sizes.items():
        file, same = catalog.files.get(path), 0
        if file is not None and str(PurePath(path).parent) not in other_logs:
            same = _same(file, path, size, local, is_growing=path in growing)
        if file is None or same < file.size or same < size:
            changed.append(ChangedFile(path, same, size, file.size if file is not None else None))
    return Difference(tuple(changed), tuple(sorted(catalog.files.keys() - sizes.keys())))


def plan_root(catalog: Catalog, local: LocalFiles, difference: Difference) -> list[FileToFold]:
    """Return what a root of the local files has to have, and which of it is in folds already."""
    changed = {it.path: it for it in difference.changed}
    planned = []
    for path, size in sorted(local.shipped().items()):
        file = catalog.files.get(path)
        if file is None and path not in changed:
            continue  # the content of a dropped topic
        same = changed[path].same if path in changed else size
        kept = _kept(file, same) if file is not None else ()
        start = sum(it.length for it in kept)
        planned.append(FileToFold(path, kept, start, size, ()))
    return planned


def _kept(file: CatalogFile, same: int) -> tuple[FilePart, ...]:
    kept: list[FilePart] = []
    place = 0
    for piece in file.pieces:
        place += piece.length
        if not piece.is_whole or not piece.part.object or piece.is_in_slot or place > same:
            break
        kept.append(piece.part)
    return tuple(kept)


def _bytes_of(file: ChangedFile) -> int:
    return file.size if file.path.endswith(_WHOLE) else file.size - file.same


def _same(file: CatalogFile, path: str, size: int, local: LocalFiles, *, is_growing: bool) -> int:
    """Return how many bytes of a local file are certainly the store's."""
    place = 0
    for piece in file.pieces:
        stop = place + piece.length
        is_open = is_growing and stop == file.size
        if stop > size or piece.is_in_slot or is_open or path.endswith(_WHOLE):
            data = local.read(path, place, stop)
            if len(data) != piece.length or first_difference([piece], data) != piece.length:
                return place
        place = stop
    return place


def _growing(sizes: Mapping[str, int]) -> set[str]:
    """Return the last file of each kind in each folder, which may have been cut and written again since the root."""
    last: dict[tuple[str, str], str] = {}
    for path in sorted(sizes):
        name = PurePath(path)
        kind = name.stem if name.suffix.lstrip(".").isdigit() else name.suffix
        last[str(name.parent), kind] = path
    return set(last.values())


def _is_dropped(path: str) -> bool:
    """Return whether a file belongs to a deleted topic, of which only log.json says something."""
    parts = PurePath(path).parts
    return len(parts) > 2 and parts[1].startswith("x.") and parts[-1] != "log.json"
