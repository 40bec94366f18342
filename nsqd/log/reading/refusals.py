"""Reading from a disk that may refuse: one policy for every reader of the log.

A read either gives bytes, or the disk refuses to give them (with EIO, for example). The two are judged differently:

    bytes      have checksums: they are what was written, or they are damaged for good
    a refusal  says nothing about the bytes, which may be readable a moment later

So a refusal never becomes a `Hole`, and nothing is deleted, cut, overwritten or copied because of one. It is raised as
`ReadRefused`, and the reader tries again. After `READ_PATIENCE` seconds a refusal counts as lasting:

- a start gives up, and nsqd ends with the disk's error;
- a repair gives up, and the log goes on behind the refused bytes (log_fault.py);
- a channel with messages to deliver beyond the refused bytes bypasses them with a `Salvage`, which remembers what it
  could not read. The refused messages stay where they are, and are asked for again every second. Meanwhile the channel
  defers them (`Channel._put_off_new`).

A record that a later version wrote, in a form that this one does not know, is a refusal as well.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from nsqd.log.files import close_quietly

if TYPE_CHECKING:
    from pathlib import Path

    from nsqcommon.wire.log_record import UnknownFlags
    from nsqd.log.files import Files
    from nsqd.log.segment import ReadAt

log = logging.getLogger(__name__)

T = TypeVar("T")

READ_PATIENCE: Final = 3.0  # seconds until a refusal counts as lasting
RETRY_INTERVAL: Final = 0.1  # seconds between two tries of a caller that may block
_PAGE: Final = 4096
_MOST_REFUSED_PAGES: Final = 64  # a failing disk takes seconds to refuse each

# What systems report for a device that times out, is unplugged or has a bad sector, or for a silent file server.
_REFUSALS: Final = frozenset(
    (
        errno.EIO,
        errno.ETIMEDOUT,
        errno.ESTALE,
        getattr(errno, "EREMOTEIO", errno.EIO),  # only Linux has it
        errno.ENOLINK,
        errno.ENODATA,
        errno.EILSEQ,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENOMEM,
    )
)


class ReadRefused(OSError):
    """The disk refuses to give bytes of the file named by `filename`."""


def refused_to_read(unknown: UnknownFlags, path: Path) -> ReadRefused:
    """Return a refusal for a record that this version cannot read: its messages wait for one that can."""
    return ReadRefused(errno.EOPNOTSUPP, str(unknown), str(path))


def is_refusal(error: OSError) -> bool:
    """Return whether the error means that the disk fails, rather than that a file is missing or forbidden."""
    return isinstance(error, ReadRefused) or error.errno in _REFUSALS


@contextmanager
def opened_to_read(files: Files, path: Path) -> Iterator[ReadAt]:
    """Open a file, and give the reader that `strictly` returns. Raises ReadRefused, and other errors as they are."""
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
    """Return a reader of an open file that pads with zeros beyond the file's end, and raises ReadRefused."""

    def read(offset: int, size: int) -> bytes:
        try:
            return files.read_fully(descriptor, size, offset).ljust(size, b"\0")
        except OSError as error:
            raise ReadRefused(error.errno, error.strerror, str(path)) from error

    return read


class Salvage:
    """A reader that gives zeros for pages that the disk refuses, and remembers where they were.

    It serves to find the next sound record. Before taking a gap for a hole, ask `refused_in`. Raises ReadRefused if so
    much is refused that there is no use in going on.
    """

    def __init__(self, read: ReadAt) -> None:
        self.error: ReadRefused | None = None  # the last refusal
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
        """Return whether some of these bytes are zeros because the disk refused them."""
        return any(start < end and offset < stop for start, stop in self._refused.items())


def patiently(step: Callable[[], T], pause: Callable[[float], None]) -> T:
    """Repeat an idempotent step until the disk does not refuse; if the refusal lasts, raise its error.

    For a start and for threads, which may block.
    """
    waited = 0.0
    while True:
        began = monotonic()
        try:
            return step()
        except OSError as error:
            refusing = monotonic() - began  # a failing disk may take half a minute to refuse one read
            if not is_refusal(error) or waited + refusing >= READ_PATIENCE:
                raise
            if not waited:
                log.warning("cannot read now path=%s error=%s", error.filename or "", error)
        pause(RETRY_INTERVAL)
        waited += refusing + RETRY_INTERVAL


class WaitsOnce:
    """Performs the steps of one thread, which may read several files, and waits for one lasting refusal only.

    After that, a refused step raises at once.
    """

    def __init__(self, pause: Callable[[float], None]) -> None:
        self._pause = pause
        self._has_waited = False

    def __call__(self, step: Callable[[], T]) -> T:
        if self._has_waited:
            return step()
        try:
            return patiently(step, self._pause)
        except OSError as error:
            self._has_waited = is_refusal(error)
            raise

    def reader(self, read: ReadAt) -> ReadAt:
        """Return a reader that wraps `read` and waits in the same way."""
        return lambda offset, size: self(lambda: read(offset, size))


class ReadRefusals:
    """What the disk refuses to one reader of a log: since when, and which sequences the reader bypasses.

    A refused read is tried again as long as its reader waits. Once the refusal has lasted, the read looks for the next
    record that it can get, and the reader bypasses the sequences before that record. Each such stretch is read again
    from time to time. The first read of it that succeeds ends the stretch; if more of it is refused, that makes a new
    one.
    """

    __slots__ = ("_now", "_since", "_stretches")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[int, float] = {}  # sequences whose reads are refused and tried again
        self._stretches: list[tuple[int, int]] = []  # [first, end), in the order of their last reads

    def __len__(self) -> int:
        """Return how many reads are refused and wait for the disk."""
        return len(self._since) + len(self._stretches)

    @property
    def oldest_stretch(self) -> int | None:
        """The first sequence of the stretch that was read least recently; None: there is no stretch."""
        return self._stretches[0][0] if self._stretches else None

    def has_lasted(self, sequence: int) -> bool:
        """Return whether the next read of this sequence may bypass what is refused."""
        now = self._now()
        return self.end_of(sequence) != sequence or now - self._since.get(sequence, now) >= READ_PATIENCE

    def end_of(self, sequence: int) -> int:
        """Return the end of the stretch that holds the sequence, or the sequence itself if none does."""
        for first, end in self._stretches:
            if first <= sequence < end:
                return end
        return sequence

    def refused(self, sequence: int) -> None:
        """Note that a read of this sequence was refused, and will be tried again."""
        self._since.setdefault(sequence, self._now())

    def bypass(self, first: int, end: int) -> None:
        """Note that the refusal of [first, end) has lasted."""
        self.was_read(first, end)
        self._stretches.append((first, end))

    def was_read(self, first: int, end: int) -> None:
        """Note that the disk gives [first, end) again."""
        self._since = {sequence: since for sequence, since in self._since.items() if not first <= sequence < end}
        self._stretches = [stretch for stretch in self._stretches if not (stretch[0] < end and first < stretch[1])]

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        """Drop the sequences that nobody will ask for any more."""
        self._since = {sequence: since for sequence, since in self._since.items() if not is_gone(sequence)}
        self._stretches = [stretch for stretch in self._stretches if not is_gone(stretch[1] - 1)]
