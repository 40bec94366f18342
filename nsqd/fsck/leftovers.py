"""Files that lie beside the data: what was kept aside, what was left over; and how a torn tail becomes such a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.fsck.finding import Finding, Severity
from nsqd.log.files import remove_file
from nsqd.log.reading.cold import keep_aside

if TYPE_CHECKING:
    from nsqd.log.files import Files

TMP: Final = ".tmp"


def is_kept_aside(name: str) -> bool:
    return ".torn." in name or ".damaged." in name or name.endswith(".damaged")


def leftover(files: Files, path: Path, topic: str = "") -> Finding:
    def remove() -> str:
        remove_file(files, path)  # another repair may have used up its name
        return "removed"

    return Finding(Severity.NOTE, "left over by an interrupted replacement", topic=topic, file=path.name, mend=remove)


def cut_off(files: Files, path: Path, offset: int, end: int) -> str:
    """Nothing is cut that could not be kept."""
    kept = keep_aside(files, path, "torn", offset, end)
    if kept is None:
        return ""
    descriptor = files.open_to_write(path)
    try:
        files.truncate(descriptor, offset)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    return f"cut, and kept as {kept.name}"
