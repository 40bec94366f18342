"""The memory of this process: how much it uses, and how to make the C library share and return it."""

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
    """Return the resident memory of the process, or its peak if there is no /proc."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * _PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def share_one_heap() -> None:
    """Make all threads allocate from the main thread's heap. Call it before you start any other thread.

    glibc gives each thread its own arena, and freed memory stays in its arena. For example, if a thread reads and frees
    a megabyte of history, the event loop can't reuse that memory. Arenas keep threads from waiting for each other, but
    our threads gain nothing from that, because they hold Python's lock while they allocate.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:  # glibc has it
        tune(_M_ARENA_MAX, 1)


def return_unused() -> None:
    """Return the unused gaps between allocations to the operating system.

    By itself, the C library returns only the end of the heap. For example, a thousand closed TLS sessions keep all of
    their memory if a few later allocations are in between. This call takes about a millisecond, or tens of milliseconds
    with a heap of gigabytes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it; other libraries return more memory by themselves
        trim(0)
