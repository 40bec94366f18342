"""Reads from a failing disk: retries for a while, then reports a refused read and continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nsqd.fsck.finding import FsckFinding, FsckSeverity
from nsqd.log.reading.refusals import Salvage, WaitsOnce, is_refusal, opened_to_read, patiently

if TYPE_CHECKING:
    from nsqd.log.files import Files

T = TypeVar("T")

_WHY = "the disk refuses to read it; the data may be intact"


def unreadable(file: str, offset: int = 0, *, topic: str = "", first: int = 0, end: int = 0) -> FsckFinding:
    return FsckFinding(FsckSeverity.UNREADABLE, _WHY, topic, file, offset, first, end)


@contextmanager
def opened_to_salvage(files: Files, path: Path) -> Iterator[Salvage]:
    with opened_to_read(files, path) as read:
        yield Salvage(WaitsOnce(time.sleep).reader(read))


def read_or_report(read: Callable[[], T], *, file: str, topic: str = "") -> Generator[FsckFinding, None, T | None]:
    """Return the result of `read`. If the disk keeps refusing, yield a finding and return None."""
    try:
        return patiently(read, time.sleep)
    except OSError as error:
        if not is_refusal(error):
            raise
    yield unreadable(file, topic=topic)
    return None
