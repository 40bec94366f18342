"""The progress of an import, in a file of the data path. After a kill, it tells the next start what to do.

running    the topics may be incomplete: remove them, and import again
verified   everything is written and compared: rename Go's files
done       nothing to do
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqcommon.startup import StartupError
from nsqd.log.data_path import FORMAT, FileCondition, as_json, read_small_file

if TYPE_CHECKING:
    from nsqd.log.files import Files

MARKER: Final = "go-import.json"


class ImportStep(StrEnum):
    RUNNING = "running"
    VERIFIED = "verified"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Marker:
    step: ImportStep
    journal: str  # the journal file that the import writes
    topics: dict[str, str]  # the log ids by topic
    renames: dict[str, str]  # old name to new name


def read_marker(files: Files, folder: Path) -> Marker | None:
    path = folder / MARKER
    found = read_small_file(files, path)
    match found.content:
        case {"step": str(step), "journal": str(journal), "topics": dict(topics), "renames": dict(renames)}:
            return Marker(ImportStep(step), journal, topics, renames)
    if found.condition is FileCondition.MISSING:
        return None
    # Don't guess: we could serve half an import, or remove data that isn't from an import.
    raise StartupError(f"failed to import from nsqd.dat: {path} is damaged; restore it")


def write_marker(files: Files, folder: Path, marker: Marker) -> None:
    text = {
        "format": FORMAT,
        "step": marker.step,
        "journal": marker.journal,
        "topics": marker.topics,
        "renames": marker.renames,
    }
    files.replace(folder / MARKER, as_json(text))
