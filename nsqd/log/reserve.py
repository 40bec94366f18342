"""Whether publishing leaves enough of the disk free. Decides; who calls asks the file system.

    wants_look(size, now)? ──yes──> statvfs ──> looked(free, ...)
              │ no                                   │
              └──────────> take(size) <──────────────┘      False: the publisher is refused

Asking before every batch would be a system call for each, and asking only now and then would let a fast publisher run
through the reserve in between. So what we append is counted: half of what was seen to be free above the reserve may go
without another look (others write to the disk as well), and a look is never older than a second.
"""

from __future__ import annotations

from typing import Final

AUTOMATIC: Final = -1
MOST_BY_DEFAULT: Final = 256 * 1024 * 1024
SHARE_BY_DEFAULT: Final = 20  # the twentieth part of a file system: 5 %

LOOK_INTERVAL: Final = 1.0  # seconds, while there is room
CLOSED_INTERVAL: Final = 0.25  # while there is none
LEAST_MARGIN: Final = 256 * 1024
_MARGIN: Final = 8  # an eighth of the reserve


def reserve_size(wanted: int, total: int) -> int:
    """The reserve in bytes on a file system of this size; 0: none."""
    return min(MOST_BY_DEFAULT, total // SHARE_BY_DEFAULT) if wanted == AUTOMATIC else wanted


class Reserve:
    """Closed when a batch would reach into the reserve, open again when there is a margin above it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_open = True
        self.free = 0  # as of the last look
        self._margin = max(LEAST_MARGIN, size // _MARGIN)
        self._room = 0  # above the reserve, as far as we know
        self._unlooked = 0  # of it what may be taken without another look
        self._look_at = 0.0

    def wants_look(self, size: int, now: float) -> bool:
        """Whether the file system has to be asked before `size` bytes are taken."""
        return now >= self._look_at or (self.is_open and size > self._unlooked)

    def looked(self, free: int, *, unwritten: int, now: float) -> None:
        """`unwritten` bytes were taken and are not in the file system yet."""
        self.free = free
        self._room = free - unwritten - self.size
        self._unlooked = self._room // 2
        if self.is_open:
            self.is_open = self._room > 0
        else:
            self.is_open = self._room >= self._margin
        self._look_at = now + (LOOK_INTERVAL if self.is_open else CLOSED_INTERVAL)

    def could_not_look(self, now: float) -> None:
        """What was known stays known."""
        self._look_at = now + LOOK_INTERVAL

    def take(self, size: int) -> bool:
        """Counts `size` bytes that are going to be written. False: they must not be.

        One batch that is larger than what is left does not close it for smaller ones, unless little is left.
        """
        if self.is_open and size > self._room:
            self.is_open = self._room >= self._margin
            return False
        if self.is_open:
            self._room -= size
            self._unlooked -= size
        return self.is_open
