"""Files that aren't live data: bytes kept aside, and temporary files. Also cuts off a torn tail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.fsck.finding import FsckFinding, FsckSeverity
from nsqd.log.files import remove_file
from nsqd.log.reading.cold import keep_aside

if TYPE_CHECKING:
    from nsqd.log.files import Files

TMP: Final = ".tmp"


def is_kept_aside(name: str) -> bool:
    return ".torn." in name or ".damaged." in name or name.endswith(".damaged")


def leftover(files: Files, path: Path, topic: str = "") -> FsckFinding:
    def remove() -> str:
        remove_file(files, path)  # it may be gone already, because another repair has used this name for its own write
        return "removed"

    return FsckFinding(
        FsckSeverity.NOTE, "temporary file of an interrupted write", topic=topic, file=path.name, repair=remove
    )


def cut_off(files: Files, path: Path, offset: int, end: int) -> str:
    """Copy a torn tail aside and cut it off. Returns a text about it, or "" if the copy failed and nothing was cut."""
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
