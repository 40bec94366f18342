"""The record of an import, kept in the data path: how far it got, and what it has created.

running    its topics may exist in part: they are removed, and the import begins again
verified   everything was written and compared; Go's files get their new names
done
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
    # A guess could serve half of an import, or remove data that no import created.
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
