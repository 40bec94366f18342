"""The disk reserve: refuses publishes that would leave less space free than --disk-reserve.

    refusal(size) ──> wants_look(size, now)? ──yes──> statvfs ──> looked(free, ...)
                            │ no                                       │
                            └────────────> take(size) <────────────────┘      False: refuse the publish

If we asked the file system before every batch, each batch would cost a system call. If we asked only now and then, a
fast publisher could use up the reserve in between. So we count the bytes that we append, and ask again once half of
the space above the reserve is used, or after a second. Only half, because other programs write to the disk too. For
example, with 300 MB free and a reserve of 100 MB, we append up to 100 MB before we look again.

`DiskReserve` asks the file system and answers publishers. `Reserve` counts and decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.log.faults import FaultKind, StorageFault
from nsqd.log.files import DiskError, error_text

if TYPE_CHECKING:
    from nsqd.log.faults import Faults
    from nsqd.log.files import Files

log = logging.getLogger(__name__)

AUTOMATIC: Final = -1
MOST_BY_DEFAULT: Final = 256 * 1024 * 1024
SHARE_BY_DEFAULT: Final = 20  # one twentieth of the file system, 5 %

LOOK_INTERVAL: Final = 1.0  # seconds between two looks while we accept publishes
CLOSED_INTERVAL: Final = 0.25  # seconds between two looks while we refuse them
LEAST_MARGIN: Final = 256 * 1024
_MARGIN: Final = 8  # an eighth of the reserve


class DiskReserve:
    """Refuses publishes that would leave less than --disk-reserve free, and reports low space as a fault."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        faults: Faults,
        now: Callable[[], float],
        *,
        reserve: int,
        unwritten: Callable[[], int],
    ) -> None:
        """Set up the reserve. `unwritten` returns how many bytes the logs have accepted but not written yet."""
        self._folder = folder
        self._files = files
        self._fault = StorageFault(faults, FaultKind.RESERVE)
        self._now = now
        self._unwritten = unwritten
        self._reserve = Reserve(self._size_of(reserve))

    def refusal(self, size: int) -> str | None:
        """Count `size` more bytes as written and return None, or return why that would leave too little space."""
        reserve = self._reserve
        if not reserve.size:
            return None
        if reserve.wants_look(size, self._now()):
            self.look()
        return None if reserve.take(size) else self._low_space()

    def look(self) -> None:
        """Check how much space is free, and stop or resume publishing."""
        reserve = self._reserve
        try:
            free = self._files.free_bytes(self._folder)
        except OSError:
            reserve.look_failed(self._now())
            return
        reserve.looked(free, unwritten=self._unwritten(), now=self._now())
        if not reserve.is_open:
            self._low_space()
        elif self._fault.error is not None:
            self._fault.end()

    def is_low(self) -> bool:
        """Return whether less than the reserve is free. Blocks on the disk. You may call it from any thread."""
        try:
            return self._reserve.size > 0 and self._files.free_bytes(self._folder) < self._reserve.size
        except OSError:
            return False

    def _size_of(self, wanted: int) -> int:
        if not wanted:
            return 0
        try:
            return reserve_size(wanted, self._files.total_bytes(self._folder))
        except OSError as error:
            log.warning("--disk-reserve has no effect error=%s", error_text("statfs", self._folder, error))
            return 0

    def _low_space(self) -> str:
        """Return the error for a publisher. If we now refuse all publishes, also report it as a fault."""
        reserve = self._reserve
        left, kept = [f"{size / (1 << 20):.1f} MiB" for size in (reserve.free, reserve.size)]
        text = f"write {self._folder}: {left} left on the disk, and --disk-reserve keeps {kept} free"
        if not reserve.is_open:
            self._fault.begin(DiskError(text, is_full=True))
        return text


def reserve_size(wanted: int, total: int) -> int:
    """Return the reserve in bytes on a file system of `total` bytes. 0 means no reserve."""
    return min(MOST_BY_DEFAULT, total // SHARE_BY_DEFAULT) if wanted == AUTOMATIC else wanted


class Reserve:
    """Counts the space above the reserve. While it's `is_open`, batches that fit are accepted.

    It closes when the reserve is reached. It opens again only when the space exceeds the reserve by a margin, so that
    it doesn't open and close all the time.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_open = True
        self.free = 0  # as of the last look
        self._margin = max(LEAST_MARGIN, size // _MARGIN)
        self._room = 0  # bytes above the reserve as of the last look, minus the bytes taken since
        self._allowance = 0  # the part of `_room` that we may use before we look again
        self._look_at = 0.0

    def wants_look(self, size: int, now: float) -> bool:
        """Return whether to ask the file system before taking `size` bytes."""
        return now >= self._look_at or (self.is_open and size > self._allowance)

    def looked(self, free: int, *, unwritten: int, now: float) -> None:
        """Apply the result of a look. `unwritten` bytes were taken earlier but aren't in the file system yet."""
        self.free = free
        self._room = free - unwritten - self.size
        self._allowance = self._room // 2
        if self.is_open:
            self.is_open = self._room > 0
        else:
            self.is_open = self._room >= self._margin
        self._look_at = now + (LOOK_INTERVAL if self.is_open else CLOSED_INTERVAL)

    def look_failed(self, now: float) -> None:
        """Keep the last result after a failed look, and try again after the usual interval."""
        self._look_at = now + LOOK_INTERVAL

    def take(self, size: int) -> bool:
        """Count `size` bytes that will be written. Return False if they must not be written.

        A batch that's too large for the remaining room doesn't close the reserve for smaller ones, unless the room is
        below the margin.
        """
        if self.is_open and size > self._room:
            self.is_open = self._room >= self._margin
            return False
        if self.is_open:
            self._room -= size
            self._allowance -= size
        return self.is_open
