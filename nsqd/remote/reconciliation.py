"""What becomes of each file of a data path when its owner begins: it stays, is compared, is fetched, or goes aside.

Continued after a kill, the data path is what the last owner had: it may have more than the store, and nothing that is older.

Continued after a power cut, it may also have less, and holes. The root's bytes are on the disk (the mark says so), so only
what slots have is compared. A file that agrees with the store as far as the store knows it keeps its tail, because then
the tail may have been synced. One that disagrees had lost something before its tail, so its tail was never synced as a
whole, and the store's bytes are right.

Adopted, it is somebody else's past: the store is right about everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from google_crc32c import value as crc32c

from nsqd.remote.local_mark import Decision

if TYPE_CHECKING:
    from nsqd.remote.catalog import Catalog, CatalogFile, Piece

_SLOTS: Final = "wal/"


class Fate(Enum):
    KEEP = "keep"  # also a tail that the store doesn't have
    COMPARE = "compare"  # keep it if its beginning is what the store has, otherwise fetch it
    FETCH = "fetch"  # from the store; a local file of that name goes aside
    ASIDE = "aside"


def plan(decision: Decision, catalog: Catalog, local: Mapping[str, int], *, same_boot: bool) -> dict[str, Fate]:
    """Return the fate of each file, given the sizes of the local ones."""
    if decision is Decision.ADOPT:
        fates = dict.fromkeys(catalog.files, Fate.FETCH)
        return fates | {path: Fate.ASIDE for path in local if path not in fates}
    is_complete = all(local.get(path, -1) >= file.size for path, file in catalog.files.items())
    fates = {path: _fate_of(file, local.get(path), same_boot and is_complete) for path, file in catalog.files.items()}
    for path in local:
        if path not in fates:
            fates[path] = Fate.ASIDE if path in catalog.removed else Fate.KEEP
    return fates


def _fate_of(file: CatalogFile, size: int | None, is_undisturbed: bool) -> Fate:
    if size is None:
        return Fate.FETCH
    if is_undisturbed:
        return Fate.KEEP
    if any(it.part.object.startswith(_SLOTS) for it in file.pieces):
        return Fate.COMPARE
    return Fate.KEEP if size >= file.size else Fate.FETCH


def first_difference(pieces: Sequence[Piece], local: bytes) -> int:
    """Return up to where a local file certainly is what the store has. The rest has to be shipped.

    Its size alone doesn't tell: after a write that failed, the owner may have cut the file and written something else.
    """
    place = 0
    for piece in pieces:
        found = local[place : place + piece.length]
        if not piece.is_whole or crc32c(found) != piece.part.crc:
            return place
        place += piece.length
    return place
