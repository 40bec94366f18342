"""What becomes of each file of a data path when its owner begins: it stays, is compared, is fetched, or goes aside.

Continued after a kill, in the same boot, each write that was made is in its file, synced or not. So a file that is as long
as in the store, or longer, is right without a look at it, whatever other files lack. Two things can make one shorter:

- A write failed and was cut off, for example because the disk was full, and the store has got only the write. What was
  cut was never acknowledged.
- The files are a copy from before, made since the newest root (the mark rules out earlier ones) and put back while the
  machine ran on. Then the store has acknowledged messages that the file here lacks.

If a file isn't the beginning of the store's, it was cut and written again. If a later file follows it that the store has
never heard of, it was cut and finished. Neither can be in a copy from before, so these files stay. We fetch the others,
because that loses nothing in either case: at worst it brings back half of a record, which the recovery cuts again, or a
record whose publisher got an error. The message ids move on as well then, because node.json may be the copy's, too.

A snapshot of a running disk lacks pages as after a power cut, and so may a shared folder whose server has restarted. Both
may come back without a reboot here. So if the bytes of a file aren't the store's because of zeros up to the end of a page,
everything is judged as after a power cut. What was cut and written again has a record there.

Continued after a power cut, a file may have less, and holes. The root's bytes are on the disk (the mark says so), so only
what slots have is compared. A file that agrees with the store as far as the store knows it keeps its tail, because then
the tail may have been synced. One that disagrees had lost something before its tail, so its tail was never synced as a
whole, and the store's bytes are right.

What its owner has removed while the store was away stays removed, as far as that can be told from what a disk has lost.
If it has deleted a topic and created it again, the files of both logs have the same names, and all those of the newer log
count. `other_logs` says which one that is. If the store has never had the log here, it is newer than the store's, unless the
journal here is shorter: then a power cut has taken the entry of its creation, so no publish to it was synced.

Files that aren't complete (`.tmp`) don't count, because the recovery removes them anyway.

Adopted, it is somebody else's past: the store is right about everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from google_crc32c import value as crc32c

from nsqd.remote.local_mark import Decision

if TYPE_CHECKING:
    from nsqd.remote.catalog import Catalog, CatalogFile, Piece

_WHOLE: Final = ".json"  # files that are replaced as a whole, often by a version of the same size
_NEW: Final = ".tmp"
PAGE: Final = 4096  # bytes; a disk loses whole ones


class Fate(Enum):
    KEEP = "keep"  # also a tail that the store doesn't have
    COMPARE = "compare"  # keep it if its beginning is what the store has, otherwise fetch it
    FETCH = "fetch"  # from the store; a local file of that name goes aside
    ASIDE = "aside"


def plan(
    decision: Decision,
    catalog: Catalog,
    local: Mapping[str, int],
    *,
    same_boot: bool,
    other_logs: Collection[str] = (),
    older_logs: Collection[str] = (),
    rewritten: Collection[str] = (),
) -> dict[str, Fate]:
    """Return the fate of each file, given the sizes of the local ones.

    `other_logs`: the folders of topics that have another log in the store; `older_logs`: those of them where the store's
    is the newer one. `rewritten`: files that are shorter than in the store, and not the beginning of what it has.
    """
    fates: dict[str, Fate]
    if decision is Decision.ADOPT:
        fates = dict.fromkeys(catalog.files, Fate.FETCH)
        return fates | {path: Fate.ASIDE for path in local if path not in fates}
    removals = _Removals(catalog, local, rewritten, same_boot=same_boot)
    is_older = not removals.has_whole_journal
    fetched_logs = set(other_logs if is_older else older_logs)
    certain = {*rewritten, *_followed(catalog, local)}
    fates = {}
    for path, file in catalog.files.items():
        if path.endswith(_NEW):
            continue
        if _folder_of(path) in fetched_logs:
            fates[path] = Fate.FETCH
        elif _folder_of(path) not in other_logs and (path in local or not removals.has(path, file)):
            size = local.get(path)
            fates[path] = _after_kill(file, size, path in certain) if same_boot else _after_power_cut(file, size)
    if same_boot and Fate.FETCH in fates.values():
        fates |= {path: Fate.COMPARE for path, fate in fates.items() if fate is Fate.KEEP and path.endswith(_WHOLE)}
    for path in local:
        if path not in fates:
            is_gone = _folder_of(path) in fetched_logs or (path in catalog.removed and is_older)
            fates[path] = Fate.ASIDE if is_gone else Fate.KEEP
    return fates


class _Removals:
    """Which missing files their owner has removed while the store was away, so that the store has yet to hear of it.

    If they came back, a log would have a gap, and a deleted topic would be there again. But a file may also be missing
    because a power cut has taken its name, or because this is a copy from before it was made. So it counts as removed if
    its name was durable, and if it is what an owner removes: the first files of a kind, of which later ones are here; or a
    whole folder, if the journal here is at least as long as in the store, because the folder is in the journal before.
    """

    def __init__(
        self, catalog: Catalog, local: Mapping[str, int], rewritten: Collection[str], *, same_boot: bool
    ) -> None:
        self._same_boot = same_boot
        self._first: dict[tuple[str, str], str] = {}  # by folder and kind
        for path in sorted(local, reverse=True):
            self._first[_kind_of(path)] = path
        self._folders = {folder for folder, _ in self._first}
        stored = max((it for it in catalog.files if is_journal(it)), default="")
        newest = max(filter(is_journal, local), default="")
        size = catalog.files[stored].size if stored else 0
        is_whole = local.get(newest, 0) >= size or newest in rewritten
        self.has_whole_journal = newest > stored or (newest == stored and is_whole)

    def has(self, path: str, file: CatalogFile) -> bool:
        if not self._same_boot and all(it.is_in_slot for it in file.pieces):
            return False
        folder, kind = _kind_of(path)
        first = self._first.get((folder, kind))
        if first is not None:
            return path < first
        return folder not in self._folders and self.has_whole_journal


def _kind_of(path: str) -> tuple[str, str]:
    """Return the folder of a file, and what distinguishes it from files of other kinds: a suffix, or `journal`."""
    folder, _, name = path.rpartition("/")
    stem, _, suffix = name.rpartition(".")
    return folder, stem if suffix.isdigit() else suffix


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def is_journal(path: str) -> bool:
    return path.startswith("journal")


def _followed(catalog: Catalog, local: Mapping[str, int]) -> set[str]:
    """Return the files with a later one of their kind after them that the store has never heard of."""
    newest: dict[tuple[str, str], str] = {}
    for path in sorted(local):
        if path not in catalog.files and path not in catalog.removed:
            newest[_kind_of(path)] = path
    return {path for path in local if path < newest.get(_kind_of(path), "")}


def _after_kill(file: CatalogFile, size: int | None, is_certain: bool) -> Fate:
    return Fate.KEEP if size is not None and (size >= file.size or is_certain) else Fate.FETCH


def _after_power_cut(file: CatalogFile, size: int | None) -> Fate:
    if size is None:
        return Fate.FETCH
    if file.is_in_slots:
        return Fate.COMPARE
    return Fate.KEEP if size >= file.size else Fate.FETCH


def is_lost_page(stored: bytes, local: bytes, place: int) -> bool:
    """Return whether local bytes from this place of their file on differ from the store's because a page was lost.

    `local` reaches beyond `stored` as far as the page does.
    """
    for start in range(0, len(stored), PAGE):
        if stored[start : start + PAGE] != local[start : start + PAGE]:
            differs = next(it for it in range(start, len(stored)) if stored[it : it + 1] != local[it : it + 1])
            return not any(local[differs : differs + PAGE - (place + differs) % PAGE])
    return False


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
