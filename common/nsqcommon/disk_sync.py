"""Makes files durable, so that they survive a power cut.

On Linux, `fsync` returns once the data is durable, and `fdatasync` does the same but skips the file's times. macOS has
no `fdatasync`, and its `fsync` leaves the data in the drive's cache: only F_FULLFSYNC writes it to the medium.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from typing import Final

_FULL_SYNC: Final = "F_FULLFSYNC"
_HAS_NO_FULL_SYNC: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)  # network and foreign file systems


def data_sync() -> Callable[[int], object]:
    """Return the function that makes a file's content durable on this system."""
    return _full_sync if hasattr(fcntl, _FULL_SYNC) else getattr(os, "fdatasync", os.fsync)


def sync_all(descriptor: int) -> None:
    """Make a file, or a folder's list of names, durable."""
    if hasattr(fcntl, _FULL_SYNC):
        _full_sync(descriptor)
    else:
        os.fsync(descriptor)


def _full_sync(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, getattr(fcntl, _FULL_SYNC))
    except OSError as error:
        if error.errno not in _HAS_NO_FULL_SYNC:
            raise
        os.fsync(descriptor)
