"""Which topics have another log here than in the store, because their owner has deleted and created them while it was away.

The files of a log have the names of its topic and of sequences, so those of two logs are the same, and may even have the
same sizes. log.json says which log they are of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqd.log.data_path import LOG_JSON, read_log_id
from nsqd.remote.reconciliation import first_difference

if TYPE_CHECKING:
    from nsqd.remote.catalog import Catalog
    from nsqd.remote.local_files import LocalFiles


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
            is_same = len(data) == first_difference(file.pieces, data) == file.size
            if not is_same and read_log_id(local.files, local.folder / folder) is not None:
                found.add(folder)
    return found
