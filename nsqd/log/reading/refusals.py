"""Reads from a disk that may refuse to read: one policy for all readers of the log.

A read either returns bytes, or the disk refuses it, for example with EIO. These are very different:

    bytes      have checksums, so they're either correct or damaged for good
    a refusal  says nothing about the bytes, and we may be able to read them a moment later

So a refusal never becomes a `Hole`, and we never delete, cut, overwrite or copy anything because of one. We raise it as
`ReadRefused`, and the reader retries. After `READ_PATIENCE` seconds we treat the refusal as lasting:

- At startup, nsqd exits with the disk's error.
- A repair gives up, and the log continues after the refused bytes (log_fault.py).
- A channel that has messages to deliver after the refused bytes bypasses them with a `Salvage`, which remembers the
  refused bytes. Those messages stay in the log, and we try to read them every second. Meanwhile the channel defers
  them (`Channel._put_off_new`).

A record in a form that only a later version of nsqd can read counts as a refusal too.
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

READ_PATIENCE: Final = 3.0  # seconds until we treat a refusal as lasting
RETRY_INTERVAL: Final = 0.1  # seconds between two tries, for callers that may block
_PAGE: Final = 4096
_MOST_REFUSED_PAGES: Final = 64  # because a failing disk can take seconds to refuse each one

# Errors for a device that times out, is unplugged or has a bad sector, and for a file server that doesn't answer.
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
    """The disk refuses to read from the file in `filename`."""


def refused_to_read(unknown: UnknownFlags, path: Path) -> ReadRefused:
    """Return a refusal for a record that this version can't read. Its messages wait for a version that can."""
    return ReadRefused(errno.EOPNOTSUPP, str(unknown), str(path))


def is_refusal(error: OSError) -> bool:
    """Return whether the disk is failing, rather than a file being missing or forbidden."""
    return isinstance(error, ReadRefused) or error.errno in _REFUSALS


@contextmanager
def opened_to_read(files: Files, path: Path) -> Iterator[ReadAt]:
    """Open a file and yield a reader from `strictly`. Raises ReadRefused if the disk refuses, or another OSError."""
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
    """Return a reader of an open file. It raises any error as ReadRefused, and pads with zeros after the file's end."""

    def read(offset: int, size: int) -> bytes:
        try:
            return files.read_fully(descriptor, size, offset).ljust(size, b"\0")
        except OSError as error:
            raise ReadRefused(error.errno, error.strerror, str(path)) from error

    return read


class Salvage:
    """A reader that returns zeros for pages that the disk refuses, and remembers where they are.

    Use it to find the next sound record after refused bytes. If you find bad bytes, call `refused_in` before you treat
    them as a hole. Raises ReadRefused if too many pages are refused.
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
        """Return whether some of these bytes are zeros only because the disk refused them."""
        return any(start < end and offset < stop for start, stop in self._refused.items())


def patiently(step: Callable[[], T], pause: Callable[[float], None]) -> T:
    """Retry an idempotent step until the disk stops refusing it. Raise the error if that takes too long.

    This blocks, so call it only at startup or in a thread.
    """
    waited = 0.0
    while True:
        began = monotonic()
        try:
            return step()
        except OSError as error:
            refusing = monotonic() - began  # count this too: a failing disk may take half a minute to refuse a read
            if not is_refusal(error) or waited + refusing >= READ_PATIENCE:
                raise
            if not waited:
                log.warning("read refused, retrying path=%s error=%s", error.filename or "", error)
        pause(RETRY_INTERVAL)
        waited += refusing + RETRY_INTERVAL


class WaitsOnce:
    """Performs the steps of one thread, and waits for at most one lasting refusal.

    A thread may read several files. Without this, a dead disk would cost it READ_PATIENCE for each of them. After the
    first lasting refusal, a refused step raises its error right away.
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
    """The refused reads of one reader of a log, and the stretches of sequences that the reader bypasses.

    We retry a refused read while a channel waits for it. After READ_PATIENCE, the next try looks for the next readable
    record, and the reader bypasses the sequences before it: that's a stretch. We retry each stretch from time to time.
    The first successful read ends it, and if another part is still refused, that becomes a new stretch.
    """

    __slots__ = ("_now", "_since", "_stretches")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[int, float] = {}  # sequence -> when its read was first refused
        self._stretches: list[tuple[int, int]] = []  # [first, end), least recently tried first

    def __len__(self) -> int:
        """Return the number of refused reads."""
        return len(self._since) + len(self._stretches)

    @property
    def oldest_stretch(self) -> int | None:
        """The first sequence of the stretch that was tried least recently. None if there are no stretches."""
        return self._stretches[0][0] if self._stretches else None

    def has_lasted(self, sequence: int) -> bool:
        """Return whether the next read of this sequence may bypass refused bytes."""
        now = self._now()
        return self.end_of(sequence) != sequence or now - self._since.get(sequence, now) >= READ_PATIENCE

    def end_of(self, sequence: int) -> int:
        """Return the end of the stretch that holds the sequence, or the sequence itself if it isn't in one."""
        for first, end in self._stretches:
            if first <= sequence < end:
                return end
        return sequence

    def refused(self, sequence: int) -> None:
        """Record a refused read of this sequence. The reader will retry it."""
        self._since.setdefault(sequence, self._now())

    def bypass(self, first: int, end: int) -> None:
        """Add the stretch [first, end), because the disk has refused it for too long."""
        self.was_read(first, end)
        self._stretches.append((first, end))

    def was_read(self, first: int, end: int) -> None:
        """Drop the refusals in [first, end), and the stretches that overlap it, after a successful read."""
        self._since = {sequence: since for sequence, since in self._since.items() if not first <= sequence < end}
        self._stretches = [stretch for stretch in self._stretches if not (stretch[0] < end and first < stretch[1])]

    def forget(self, is_gone: Callable[[int], bool]) -> None:
        """Drop the refusals and stretches whose messages no longer exist."""
        self._since = {sequence: since for sequence, since in self._since.items() if not is_gone(sequence)}
        self._stretches = [stretch for stretch in self._stretches if not is_gone(stretch[1] - 1)]
