"""Checks folders on this machine that a job will write to."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile

from pyspark_nsq.failures import PipeFailed


def check_folder(folder: Path, *, to_write: bool = True) -> None:
    """Raise PipeFailed unless this is a folder or can become one, and is writable if it has to be.

    We try to write, because permissions don't show that a disk is full or mounted read-only. Nothing is left behind.
    """
    there = next(it for it in (folder, *folder.absolute().parents) if os.path.lexists(it))
    if not there.is_dir():
        raise PipeFailed(f"{folder}: {there} is not a folder")
    if not to_write:
        return
    try:
        TemporaryFile(dir=there).close()
    except OSError as error:
        raise PipeFailed(f"{folder}: {there} cannot be written to: {error.strerror}") from None
