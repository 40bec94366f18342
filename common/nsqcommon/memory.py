"""How much memory the process uses, and how the C library is made to share it and give it back."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_MAXRSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024  # bytes
_M_ARENA_MAX: Final = -8  # malloc.h


def resident_bytes() -> int:
    """Return the resident memory of the process; where there is no /proc, the most that it has ever been."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * _PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def share_one_heap() -> None:
    """Make all threads allocate from the main thread's heap. Call it before any other thread starts.

    glibc gives each thread an arena of its own, and memory that a thread has freed stays in its arena: the event loop
    cannot reuse a megabyte of history that was read in a thread. Arenas save threads from waiting for each other, but
    ours allocate while they hold Python's lock.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:  # glibc has it
        tune(_M_ARENA_MAX, 1)


def return_unused() -> None:
    """Return the unused gaps between allocations to the operating system.

    By itself the C library returns only the end of the heap. After a thousand TLS sessions have gone, the few
    allocations among them keep all of their memory. Takes about a millisecond, and some tens with a heap of gigabytes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it; other libraries return more memory by themselves
        trim(0)
