"""Which topics have another log here than in the store, because their owner has deleted them and created them again.

The files of a log have the names of its topic and of sequences, so those of two logs are the same, and may even have the
same sizes. log.json says which log they are of.

Usually the log here is the newer one, because the store was away meanwhile. But a power cut may undo the renaming of a
folder and leave the journal that says so. Then the log here is one that the store has had before, and its own is the
newer one, perhaps with messages that were answered OK. Each log has an id of its own, so a log that the store has had is
never a newer one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from nsqd.log.data_path import LOG_JSON, read_log_id
from nsqd.remote.reconciliation import first_difference

if TYPE_CHECKING:
    from nsqd.remote.catalog import Catalog, CatalogFile
    from nsqd.remote.local_files import LocalFiles


def find_older_logs(catalog: Catalog, local: LocalFiles, others: Collection[str]) -> set[str]:
    """Return those of these folders that have a log which the store had before the one it has now. Raises OSError.

    It is enough to know the logs since the root, because what an owner has removed before a root is synced with it.
    """
    return {it for it in others if _is_former(catalog, local, f"{it}/{LOG_JSON}")}


def _is_former(catalog: Catalog, local: LocalFiles, path: str) -> bool:
    return any(_is_same(it, local.read(path, 0, it.size + 1)) for it in catalog.former_logs.get(path, ()))


def find_other_logs(catalog: Catalog, local: LocalFiles) -> set[str]:
    """Return the folders of these topics. A damaged log.json says nothing. Raises OSError."""
    found = set()
    for path, file in catalog.files.items():
        folder, _, name = path.rpartition("/")
        if name == LOG_JSON and folder:
            try:
                data = local.read(path, 0, file.size + 1)
            except FileNotFoundError:
                continue
            if not _is_same(file, data) and read_log_id(local.files, local.folder / folder) is not None:
                found.add(folder)
    return found


def _is_same(file: CatalogFile, data: bytes) -> bool:
    return len(data) == first_difference(file.pieces, data) == file.size
