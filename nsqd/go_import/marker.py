"""What is remembered of an import, in the data path: how far it came, and what it has made.

running    its topics may be there in part: they are removed, and it begins anew
verified   everything is there and was compared; Go's files get their new names
done
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.startup import StartupError
from nsqd.log.data_path import FORMAT, Condition, as_json, read_small_file

if TYPE_CHECKING:
    from nsqd.log.files import Files

MARKER: Final = "go-import.json"


class Step(StrEnum):
    RUNNING = "running"
    VERIFIED = "verified"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Marker:
    step: Step
    journal: str  # the file with what the journal has to know
    topics: dict[str, str]  # the ids of their logs
    renames: dict[str, str]  # from what to what


def read_marker(files: Files, folder: Path) -> Marker | None:
    path = folder / MARKER
    found = read_small_file(files, path)
    match found.content:
        case {"step": str(step), "journal": str(journal), "topics": dict(topics), "renames": dict(renames)}:
            return Marker(Step(step), journal, topics, renames)
    if found.condition is Condition.MISSING:
        return None
    # Guessing could serve half of an import, or remove what was not made by one.
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
