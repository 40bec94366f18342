"""Files of a data path, and the page cache."""

from __future__ import annotations

import os
from pathlib import Path


def evict(folder: Path) -> None:
    """Evict the folder's files from the page cache, so that they are read from the disk again.

    Only these files: /proc/sys/vm/drop_caches would need root, and slow down everyone else on the machine.
    """
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)  # only clean pages can be evicted
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                total += path.stat().st_size
        except FileNotFoundError:
            pass  # the log removed the file since it was listed
    return total
