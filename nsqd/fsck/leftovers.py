"""Files beside the data: bytes kept aside, leftovers of interrupted writes, and how a torn tail is kept aside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.fsck.finding import Damage, DamageSeverity
from nsqd.log.files import remove_file
from nsqd.log.reading.cold import keep_aside

if TYPE_CHECKING:
    from nsqd.log.files import Files

TMP: Final = ".tmp"


def is_kept_aside(name: str) -> bool:
    return ".torn." in name or ".damaged." in name or name.endswith(".damaged")


def leftover(files: Files, path: Path, topic: str = "") -> Damage:
    def remove() -> str:
        remove_file(files, path)  # it may be gone: another repair may have renamed a file of this name
        return "removed"

    return Damage(
        DamageSeverity.NOTE, "left over by an interrupted replacement", topic=topic, file=path.name, mend=remove
    )


def cut_off(files: Files, path: Path, offset: int, end: int) -> str:
    """Cut off a torn tail that was kept aside.

    Returns what was done, or "" if it could not be kept: then nothing is cut.
    """
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
