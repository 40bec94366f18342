"""Reading from a disk that may refuse: one policy for every reader of the log.

A read gives bytes, or the disk refuses to give them (EIO, say). The two are judged differently:

    bytes      their checksums tell: they are what was written, or they are damage, for good
    a refusal  says nothing about the bytes, which may be read a moment later

A refusal therefore never becomes a `Hole`, and nothing is deleted, cut, overwritten or copied because of one. It is
raised as `ReadRefused`, and whoever reads comes again. After `READ_PATIENCE` seconds it counts as lasting: a start and
a repair give up, and a reader that has others waiting behind it goes round the refused bytes with a `Salvage`, which
knows what it could not read. What lies there stays where it is, and is asked for every second.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from nsqd.log.files import close_quietly

if TYPE_CHECKING:
    from pathlib import Path

    from nsqd.log.files import Files
    from nsqd.log.segment import ReadAt

log = logging.getLogger(__name__)

T = TypeVar("T")

READ_PATIENCE: Final = 3.0  # seconds until a refusal counts as lasting
RETRY_INTERVAL: Final = 0.1  # seconds between two tries of those who may wait in place
_PAGE: Final = 4096
_MOST_REFUSED_PAGES: Final = 64  # a sick disk takes seconds to refuse one

# What Linux makes of a device that times out, is unplugged, has a bad sector, or is a file server that does not answer.
_REFUSALS: Final = frozenset(
    (
        errno.EIO,
        errno.ETIMEDOUT,
        errno.ESTALE,
        errno.EREMOTEIO,
        errno.ENOLINK,
        errno.ENODATA,
        errno.EILSEQ,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENOMEM,
    )
)


class ReadRefused(OSError):
    """The disk does not give the bytes; `filename` is the file's."""


def is_refusal(error: OSError) -> bool:
    """Whether the error says that the disk fails, and not that something is missing or forbidden."""
    return isinstance(error, ReadRefused) or error.errno in _REFUSALS


@contextmanager
def opened_to_read(files: Files, path: Path) -> Iterator[ReadAt]:
    """Reads of one file: bytes, or ReadRefused. Other errors of opening it are raised as they are."""
    try:
        descriptor = files.open_to_read(path)
    except OSError as error:
        if is_refusal(error):
            raise ReadRefused(error.errno, error.strerror, str(path)) from error
        raise
    try:
        yield strictly(files, descriptor, path)
    finally:
        close_quietly(files, descriptor)


def strictly(files: Files, descriptor: int, path: Path) -> ReadAt:
    """Reads an open file; what the file is too short for comes as zeros. Raises ReadRefused."""

    def read(offset: int, size: int) -> bytes:
        try:
            return files.read_fully(descriptor, size, offset).ljust(size, b"\0")
        except OSError as error:
            raise ReadRefused(error.errno, error.strerror, str(path)) from error

    return read


class Salvage:
    """Reads on beyond what the disk refuses, which comes as zeros, and remembers where that was.

    It serves to find the next sound record. Whoever believes in a hole asks `refused_in` first. Raises ReadRefused when
    so much is refused that there is no use in going on.
    """

    def __init__(self, read: ReadAt) -> None:
        self.error: ReadRefused | None = None  # the last one
        self._strictly = read
        self._refused: dict[int, int] = {}  # start -> end

    def __call__(self, offset: int, size: int) -> bytes:
        try:
            return self._strictly(offset, size)
        except ReadRefused:
            end = offset + size
            return b"".join(self._page(start, min(_PAGE, end - start)) for start in range(offset, end, _PAGE))

    def _page(self, offset: int, size: int) -> bytes:
        try:
            return self._strictly(offset, size)
        except ReadRefused as error:
            self.error = error
            self._refused[offset] = max(offset + size, self._refused.get(offset, 0))
            if len(self._refused) > _MOST_REFUSED_PAGES:
                raise
            return bytes(size)

    def refused_in(self, offset: int, end: int) -> bool:
        """Whether some of these bytes are zeros because they were refused."""
        return any(start < end and offset < stop for start, stop in self._refused.items())


def patiently(step: Callable[[], T], pause: Callable[[float], None]) -> T:
    """Does what may be done again until the disk does not refuse; raises what it refuses with when that lasts.

    For a start and for threads, which can wait in place.
    """
    waited = 0.0
    while True:
        try:
            return step()
        except OSError as error:
            if not is_refusal(error) or waited >= READ_PATIENCE:
                raise
            if not waited:
                log.warning("cannot read now path=%s error=%s", error.filename or "", error)
        pause(RETRY_INTERVAL)
        waited += RETRY_INTERVAL


class WaitsOnce:
    """Reads one file in a thread: waits for the disk that refuses, but only for as long as one refusal takes to last."""

    def __init__(self, read: ReadAt, pause: Callable[[float], None]) -> None:
        self._read = read
        self._pause = pause
        self._has_waited = False

    def __call__(self, offset: int, size: int) -> bytes:
        if self._has_waited:
            return self._read(offset, size)
        try:
            return patiently(lambda: self._read(offset, size), self._pause)
        except ReadRefused:
            self._has_waited = True
            raise


class Refusals:
    """What the disk refuses to one reader of a log: since when, and which sequences the reader goes round.

    A read that is refused is tried again, and its reader waits. When that has lasted, the read looks for the next record
    that it can get, and the reader goes round what lies before: a stretch of sequences, of which one is asked for again
    every second. The first answer ends the stretch; what else in it cannot be read is found out anew.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[int, float] = {}  # sequences whose reads are refused and tried again
        self._stretches: list[tuple[int, int]] = []  # [first, end), the one that was asked for last at the end

    def __len__(self) -> int:
        """How many reads wait for the disk."""
        return len(self._since) + len(self._stretches)

    @property
    def oldest_stretch(self) -> int | None:
        """Where the stretch begins that was not asked for the longest; None: there is none."""
        return self._stretches[0][0] if self._stretches else None

    def has_lasted(self, sequence: int) -> bool:
        """Whether the next read of this sequence may go round what is refused."""
        now = self._now()
        return self.end_of(sequence) != sequence or now - self._since.get(sequence, now) >= READ_PATIENCE

    def end_of(self, sequence: int) -> int:
        """The end of the stretch that holds the sequence; the sequence itself if none does."""
        for first, end in self._stretches:
            if first <= sequence < end:
                return end
        return sequence

    def refused(self, sequence: int) -> None:
        """A read of this sequence was refused, and will be tried again."""
        self._since.setdefault(sequence, self._now())

    def go_round(self, first: int, end: int) -> None:
        """The refusal of [first, end) has lasted."""
        self.was_read(first, end)
        self._stretches.append((first, end))

    def was_read(self, first: int, end: int) -> None:
        """The disk gives [first, end) again."""
        self._since = {sequence: since for sequence, since in self._since.items() if not first <= sequence < end}
        self._stretches = [stretch for stretch in self._stretches if not (stretch[0] < end and first < stretch[1])]

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        """Nobody will ask any more for sequences that are gone."""
        self._since = {sequence: since for sequence, since in self._since.items() if not is_gone(sequence)}
        self._stretches = [stretch for stretch in self._stretches if not is_gone(stretch[1] - 1)]
