"""What is in a folder whose files another process or thread may move away meanwhile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def contents_of(folder: Path) -> dict[str, bytes]:
    """Return the content of each file by its path in the folder, sorted. A file that leaves meanwhile is not among them."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                found[str(path.relative_to(folder))] = path.read_bytes()
    return dict(sorted(found.items()))
