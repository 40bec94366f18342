"""The data path of a machine with workers: one folder per worker, and no messages outside these folders."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from nsqcommon.startup import StartupError
from nsqd.log.data_path import JOURNAL_PREFIX, NODE_JSON, TOPICS, DataPathError, take_lock
from nsqd.log.files import Files, error_text
from nsqd.workers.plan import left_behind, name_of, number_in

_OURS: Final = frozenset((NODE_JSON, TOPICS, "nsqd.dat"))  # the last one is a Go nsqd's


@contextmanager
def owned_folders(data_path: str, workers: int, *, files: Files | None = None) -> Iterator[None]:
    """Lock the data path and create the workers' folders in it. Raises StartupError.

    The lock keeps out an nsqd without workers, and a second supervisor. The workers' own locks aren't enough: a second
    supervisor with more workers than the first would find the extra folders unlocked.
    """
    files = files or Files()
    folder = Path(data_path)
    lock = take_lock(files, folder, time.sleep)
    try:
        _make_folders(files, folder, workers)
        yield
    finally:
        files.close(lock)


def _make_folders(files: Files, folder: Path, workers: int) -> None:
    """Create missing folders. Raises StartupError if there are messages that no worker would serve."""
    names = _names_in(folder)
    if _are_messages(names):
        raise StartupError(
            f"data-path {folder} has messages of an nsqd without --workers: stop that nsqd, "
            f"then move everything in {folder}{_to_a_free_folder(folder, names)}"
        )
    _refuse_left_behind(folder, names, workers)
    for number in range(workers):
        _make_folder(files, folder / name_of(number))
    try:
        files.sync_folder(folder)  # otherwise a power cut might lose a worker's folder with everything synced in it
    except OSError as error:
        raise DataPathError(f"failed to open data-path: {error_text('sync', folder, error)}") from error


def _make_folder(files: Files, folder: Path) -> None:
    try:
        if not folder.is_dir():
            files.make_folder(folder)
    except OSError as error:
        raise DataPathError(f"failed to open data-path: {error_text('mkdir', folder, error)}") from error


def _to_a_free_folder(folder: Path, names: Sequence[str]) -> str:
    """Return the rest of "move everything in ...", which names the first free folder for a worker."""
    taken = _with_messages(folder, names, 0)
    free = next(name for name in map(name_of, count()) if name not in taken)
    but = f", except {', '.join(taken)}," if taken else ""
    return f"{but} into {folder / free}"


def refuse_folders_of_workers(data_path: str) -> None:
    """Raise StartupError if the data path has messages of workers. An nsqd without --workers wouldn't serve them."""
    folder = Path(data_path)
    try:
        names = os.listdir(folder)
    except OSError:
        return  # opening the data path fails later, with a better message
    _refuse_left_behind(folder, names, 0)


def _refuse_left_behind(folder: Path, names: Sequence[str], workers: int) -> None:
    left = _with_messages(folder, names, workers)
    if left:
        enough = (number_in(left[-1]) or 0) + 1
        raise StartupError(
            f"data-path {folder} has messages of {', '.join(left)}, which --workers={workers} would not serve: "
            f"start with --workers={enough}, drain these workers, stop, and move their folders away"
        )


def _with_messages(folder: Path, names: Sequence[str], workers: int) -> list[str]:
    """Return the folders of workers from number `workers` on that have messages."""
    return [name for name in left_behind(names, workers) if _are_messages(_names_in(folder / name))]


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except NotADirectoryError:
        return []  # a plain file with the name of a worker's folder
    except OSError as error:
        raise DataPathError(f"failed to open data-path: {error_text('open', folder, error)}") from error


def _are_messages(names: Sequence[str]) -> bool:
    return any(name in _OURS or name.startswith(JOURNAL_PREFIX) for name in names)
