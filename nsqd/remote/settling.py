"""Makes a data path what its new owner has to begin with: fetches what it lacks, and puts aside what it must not have.

`reconciliation` says what becomes of each file. This does it, in an order that leaves every step to be repeated if the
start dies in between:

1. files that the node no longer has go to `aside-TIME/`
2. files that are missing or wrong are fetched under another name, and get their own when they are whole
3. the message ids are moved on, if they come from the store, or are those that the store has
4. everything is synced, and then the mark in remote.json says that this data path is the owner's
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google_crc32c import value as crc32c

from nsqcommon.remote.framing import BadObject, NewerFormat
from nsqd.log.clock_mark import clock_mark
from nsqd.log.data_path import NODE_JSON, JournalEnd, NodeFile, read_node, write_node
from nsqd.remote.catalog import Piece
from nsqd.remote.fetched_files import FetchedFiles
from nsqd.remote.local_files import ASIDE, REMOTE_JSON, LocalFiles
from nsqd.remote.local_mark import Decision, LocalMark, decode_mark, encode_mark
from nsqd.remote.other_logs import find_older_logs, find_other_logs
from nsqd.remote.reconciliation import PAGE, Fate, is_journal, is_lost_page, plan
from nsqd.remote.recorder import is_shipped

if TYPE_CHECKING:
    from nsqd.remote.catalog import Catalog, CatalogFile
    from nsqd.remote.claim import ChainRead, Claimed
    from nsqd.remote.fetching import Fetch

log = logging.getLogger(__name__)

# A lost owner may have handed out ids of a reservation that the store never got. No reservation has so many.
IDS_AHEAD: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a data path, for the log and for operators."""

    decision: Decision
    fetched: int  # files
    aside: Path | None  # the folder with the files that went aside


def load_mark(local: LocalFiles) -> LocalMark | None:
    """Return the mark of a data path; None if there is none, or a damaged one. Raises NewerFormat, OSError."""
    try:
        return decode_mark(local.files.read(local.folder / REMOTE_JSON))
    except FileNotFoundError:
        return None
    except NewerFormat:
        raise
    except BadObject as error:
        log.warning("%s is damaged, so the store decides what this data path has: %s", REMOTE_JSON, error)
        return None


def save_mark(local: LocalFiles, mark: LocalMark) -> None:
    """Replace the mark, durably. Raises OSError."""
    local.files.replace(local.folder / REMOTE_JSON, encode_mark(mark))


class Settling:
    """Settles one data path.

    `found`: its mark before the claim. `boot`: that of the machine now. `is_new`: it has nothing that is worth keeping
    aside.
    """

    def __init__(
        self,
        local: LocalFiles,
        fetch: Fetch,
        found: LocalMark | None = None,
        *,
        boot: str = "",
        timestamp: str = "",
        is_new: bool = False,
    ) -> None:
        self._local = local
        self._fetch = fetch
        self._files = FetchedFiles(local, fetch)
        self._is_same_boot = found is not None and found.boot == boot != ""
        self._timestamp = timestamp
        self._is_new = is_new
        self._aside: Path | None = None

    def prepare(self, read: ChainRead) -> None:
        """Fetch what this data path will lack, and change nothing else. Raises BadObject and OSError."""
        if read.decision is Decision.CONTINUE:
            _forget_unshipped(read.catalog)
        self._fetch_lacking(read.decision, read.catalog)

    def run(self, claimed: Claimed) -> Settled:
        """Make the data path what `claimed` has to begin with. Raises BadObject and OSError.

        Afterwards the catalog has only the files that slots have.
        """
        settled = self.make_whole(claimed.node, claimed.decision, claimed.catalog)
        save_mark(self._local, claimed.mark)
        return settled

    def make_whole(self, node: str, decision: Decision, catalog: Catalog) -> Settled:
        """Do the same for a data path that doesn't get a mark."""
        local, is_adopted = self._local, decision is Decision.ADOPT
        if not is_adopted:
            _forget_unshipped(catalog)
        fates, fetched = self._fetch_lacking(decision, catalog)
        self._fetch.give_back_kept()  # fetching is over, and files that are dropped now need not reach the disk
        local.sync_fetched(fetched)
        self._put_aside(fates, catalog.files.keys(), is_adopted=is_adopted)
        for path in sorted(fetched, key=_order_of_return):
            self._put_in_place(path)
        if is_adopted:
            for folder in sorted(catalog.folders):
                local.make_folders(local.folder / folder)
            local.remove_empty_folders([*catalog.files, *catalog.folders])
        if is_adopted or NODE_JSON in fetched:
            self._move_ids_on(node)
        local.sync(catalog.files if is_adopted else fetched)
        _forget_unshipped(catalog)
        return Settled(decision, len(fetched), self._aside)

    # What to fetch

    def _fetch_lacking(self, decision: Decision, catalog: Catalog) -> tuple[dict[str, Fate], list[str]]:
        """Fetch the files that are missing or wrong, and return the fate of each file, and their paths."""
        sizes = self._local.shipped()
        others = find_other_logs(catalog, self._local)
        same_boot = self._is_same_boot and decision is Decision.CONTINUE and not self._lacks_pages(catalog, sizes)
        fates = plan(
            decision,
            catalog,
            sizes,
            same_boot=same_boot,
            other_logs=others,
            older_logs=find_older_logs(catalog, self._local, others),
            rewritten=self._rewritten(catalog, sizes) if same_boot else (),
        )
        lacking = [path for path, fate in fates.items() if self._is_lacking(path, fate, catalog, sizes)]
        self._files.get({path: catalog.files[path] for path in lacking})
        return fates, lacking

    def _is_lacking(self, path: str, fate: Fate, catalog: Catalog, sizes: Mapping[str, int]) -> bool:
        if fate not in (Fate.FETCH, Fate.COMPARE):
            return False
        file, size = catalog.files[path], sizes.get(path, -1)
        if size < file.size or (fate is Fate.FETCH and size != file.size):
            return True
        return not self._is_same(path, file, file.size)

    def _lacks_pages(self, catalog: Catalog, sizes: Mapping[str, int]) -> bool:
        """Return whether pages of some file were lost, as in a power cut, of what the store has got since its root."""
        return any(
            path in sizes and file.is_in_slots and self._lacks_page_of(path, file, min(file.size, sizes[path]))
            for path, file in catalog.files.items()
        )

    def _lacks_page_of(self, path: str, file: CatalogFile, size: int) -> bool:
        """Say so of the first `size` bytes of a file. Where it was written again, it doesn't agree with the store."""
        for place, piece, data in self._differing(path, file, size):
            if piece.is_in_slot:
                stored = self._fetch.part(piece.part)[piece.start : piece.stop]
                after = self._local.read(path, place + len(data), place + len(data) + PAGE)
                return is_lost_page(stored, data + after, place)
        return False

    def _rewritten(self, catalog: Catalog, sizes: Mapping[str, int]) -> list[str]:
        """Return the files that are shorter than in the store, and not the beginning of what it has.

        If a write fails, its owner cuts the file, and writes something else later. A copy of the disk from before would
        have the beginning.
        """
        shorter = ((path, file) for path, file in catalog.files.items() if 0 <= sizes.get(path, -1) < file.size)
        return [path for path, file in shorter if not self._is_same(path, file, sizes[path])]

    def _is_same(self, path: str, file: CatalogFile, size: int) -> bool:
        """Return whether the first `size` bytes of a local file are the store's, or all of those if it has fewer."""
        return next(self._differing(path, file, size), None) is None

    def _differing(self, path: str, file: CatalogFile, size: int) -> Iterator[tuple[int, Piece, bytes]]:
        """Yield the place of each piece whose local bytes aren't the store's, the piece, and these bytes."""
        place = 0
        for whole in file.pieces:
            if place >= size:
                break
            stop = min(size, place + whole.length)
            piece = Piece(whole.part, whole.start, whole.start + stop - place)
            data = self._local.read(path, place, stop)
            if not self._is_piece(piece, data):
                yield place, piece, data
            place = stop

    def _is_piece(self, piece: Piece, data: bytes) -> bool:
        if not piece.part.object:
            return data == bytes(piece.length)
        if piece.is_whole:
            return bool(crc32c(data) == piece.part.crc)
        return self._fetch.part(piece.part)[piece.start : piece.stop] == data

    # Where it goes

    def _put_aside(self, fates: Mapping[str, Fate], kept: Collection[str], *, is_adopted: bool) -> None:
        """Put aside what the node no longer has, and in an adopted data path also what slots don't have."""
        for path in self._local.every():
            if fates.get(path) is Fate.ASIDE or (is_adopted and path not in kept):
                self._move_aside(path)

    def _put_in_place(self, path: str) -> None:
        if self._local.files.exists(self._local.folder / path) and not self._is_new:
            self._local.keep_aside(path, self._aside_folder())
        self._local.finish_fetched(path)

    def _move_aside(self, path: str) -> None:
        if self._is_new:
            self._local.files.unlink(self._local.folder / path)
            return
        self._local.put_aside(path, self._aside_folder())

    def _aside_folder(self) -> Path:
        if self._aside is None:
            self._aside = _free_name(self._local, self._timestamp)
        return self._aside

    def _move_ids_on(self, node_id: str) -> None:
        files, folder = self._local.files, self._local.folder
        node = read_node(files, folder)
        if not isinstance(node, NodeFile):
            node = NodeFile(node_id, 0, JournalEnd(), clock_mark())
        write_node(files, folder, node._replace(ids_reserved=node.ids_reserved + IDS_AHEAD))


def _forget_unshipped(catalog: Catalog) -> None:
    """Forget the files that only roots have. They are not what slots make of them, and the next root has them again."""
    for path in [it for it in catalog.files if not is_shipped(Path(it))]:
        del catalog.files[path]


def _free_name(local: LocalFiles, timestamp: str) -> Path:
    number, folder = 1, local.folder / f"{ASIDE}{timestamp}"
    while local.files.exists(folder):
        number += 1
        folder = local.folder / f"{ASIDE}{timestamp}-{number}"
    return folder


def _order_of_return(path: str) -> tuple[bool, bool, str]:
    """Return what to sort files by that are put in place.

    A start may die in between, and the next one must not take a file that is missing then for one that its owner has
    removed. `reconciliation` tells that by a later file of the same kind, and for folders by the journal. So files of a
    kind come in their order, and the journal comes last. node.json is the first: it says whose data path this is.
    """
    return path != NODE_JSON, is_journal(path), path
