"""What the commands that check a file of entries have in common: reading it, its mistakes, and the exit status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO, TypeVar

from nsqcommon.entries_file import BadEntries

VALID: Final = 0
INVALID: Final = 1
NOT_READ: Final = 2

T = TypeVar("T")


class CheckFailed(Exception):
    """The file is invalid, or can't be read. The reasons are written."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def checked(path: str, parse: Callable[[str], T], err: TextIO) -> T:
    """Return what is in the file. Otherwise write each mistake to `err`, and raise CheckFailed."""
    try:
        return parse(Path(path).read_bytes().decode())
    except BadEntries as error:
        err.writelines(f"{it.in_file(path)}\n" for it in error.mistakes)
        raise CheckFailed(INVALID) from error
    except UnicodeDecodeError as error:
        err.write(f"{path}: {error}\n")
        raise CheckFailed(INVALID) from error
    except OSError as error:
        err.write(f"{path}: {(error.strerror or str(error)).lower()}\n")
        raise CheckFailed(NOT_READ) from error
