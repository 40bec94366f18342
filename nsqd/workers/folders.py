"""The data path of a machine with workers: a folder for each of them, and no messages beside these."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from common.startup import StartupError
from nsqd.log.data_path import JOURNAL_PREFIX, NODE_JSON, TOPICS, DataPathError
from nsqd.workers.plan import left_behind, name_of, number_in

_OURS: Final = frozenset((NODE_JSON, TOPICS, "nsqd.dat"))  # the last one is a Go nsqd's


def make_folders(data_path: str, workers: int) -> None:
    """Make the folders that are missing. Raises StartupError if there are messages that no worker would serve."""
    folder = Path(data_path)
    names = _names_in(folder)
    if _has_messages(names):
        raise StartupError(
            f"data-path {folder} holds the messages of an nsqd without --workers: stop that one, "
            f"then move everything in {folder} into {folder / name_of(0)}"
        )
    _refuse_left_behind(folder, names, workers)
    for number in range(workers):
        try:
            (folder / name_of(number)).mkdir(exist_ok=True)
        except OSError as error:
            raise DataPathError(f"failed to open data-path: {folder / name_of(number)}: {error.strerror}") from error


def refuse_folders_of_workers(data_path: str) -> None:
    """Raise StartupError if an nsqd without --workers would leave the messages of workers behind."""
    folder = Path(data_path)
    try:
        names = os.listdir(folder)
    except OSError:
        return  # opening the data path will say what is wrong with it
    _refuse_left_behind(folder, names, 0)


def _refuse_left_behind(folder: Path, names: list[str], workers: int) -> None:
    left = [name for name in left_behind(names, workers) if _has_messages(_names_in(folder / name))]
    if left:
        enough = (number_in(left[-1]) or 0) + 1
        raise StartupError(
            f"data-path {folder} has messages of {', '.join(left)}, which --workers={workers} would leave behind: "
            f"start with --workers={enough}, drain these, stop, and move their folders away"
        )


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise DataPathError(f"failed to open data-path: {folder}: {(error.strerror or str(error)).lower()}") from error


def _has_messages(names: list[str]) -> bool:
    return any(name in _OURS or name.startswith(JOURNAL_PREFIX) for name in names)
