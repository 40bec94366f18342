"""Whether publishing leaves enough of the disk free. This module decides; its caller asks the file system.

    wants_look(size, now)? ──yes──> statvfs ──> looked(free, ...)
              │ no                                   │
              └──────────> take(size) <──────────────┘      False: the publisher is refused

Asking before every batch would cost a system call for each, and asking only now and then would let a fast publisher
run through the reserve in between. So we count what we append. Half of the space that was seen above the reserve may
be used without another look (other programs write to the disk as well), and a look is never older than a second.
"""

from __future__ import annotations

from typing import Final

AUTOMATIC: Final = -1
MOST_BY_DEFAULT: Final = 256 * 1024 * 1024
SHARE_BY_DEFAULT: Final = 20  # the twentieth part of a file system: 5 %

LOOK_INTERVAL: Final = 1.0  # seconds between two looks, while the reserve is open
CLOSED_INTERVAL: Final = 0.25  # the same while it is closed
LEAST_MARGIN: Final = 256 * 1024
_MARGIN: Final = 8  # an eighth of the reserve


def reserve_size(wanted: int, total: int) -> int:
    """Return the reserve in bytes on a file system of `total` bytes; 0: none."""
    return min(MOST_BY_DEFAULT, total // SHARE_BY_DEFAULT) if wanted == AUTOMATIC else wanted


class Reserve:
    """Closed when a batch would reach into the reserve, open again when the free space exceeds it by a margin."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_open = True
        self.free = 0  # as of the last look
        self._margin = max(LEAST_MARGIN, size // _MARGIN)
        self._room = 0  # bytes above the reserve, as far as we know
        self._unlooked = 0  # the part of `_room` that may be taken without another look
        self._look_at = 0.0

    def wants_look(self, size: int, now: float) -> bool:
        """Return whether the file system has to be asked before `size` bytes are taken."""
        return now >= self._look_at or (self.is_open and size > self._unlooked)

    def looked(self, free: int, *, unwritten: int, now: float) -> None:
        """Take the result of a look. `unwritten` bytes were taken and are not in the file system yet."""
        self.free = free
        self._room = free - unwritten - self.size
        self._unlooked = self._room // 2
        if self.is_open:
            self.is_open = self._room > 0
        else:
            self.is_open = self._room >= self._margin
        self._look_at = now + (LOOK_INTERVAL if self.is_open else CLOSED_INTERVAL)

    def could_not_look(self, now: float) -> None:
        """Note that a look has failed: keep what is known, and look again after the usual interval."""
        self._look_at = now + LOOK_INTERVAL

    def take(self, size: int) -> bool:
        """Count `size` bytes that are going to be written. Return False if they must not be written.

        A batch that is too large for the room that is left does not close the reserve for smaller ones, unless the room
        is below the margin.
        """
        if self.is_open and size > self._room:
            self.is_open = self._room >= self._margin
            return False
        if self.is_open:
            self._room -= size
            self._unlooked -= size
        return self.is_open
