"""How much memory the process has, where it comes from, and giving back what is not used."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_M_ARENA_MAX: Final = -8  # malloc.h


def resident_bytes() -> int:
    """0 where there is no /proc."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * _PAGE
    except OSError:
        return 0


def share_one_heap() -> None:
    """Makes all threads allocate from the heap of the main thread. To be called before there are others.

    glibc gives each thread an arena of its own, and what a thread has allocated once stays in its arena: a megabyte of
    history that was read in a thread is not used again by the loop. Arenas save threads from waiting for each other,
    but ours allocate while they hold Python's lock.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:  # glibc has it
        tune(_M_ARENA_MAX, 1)


def return_unused() -> None:
    """Gives the operating system what the C library keeps between pieces that are in use.

    It does so by itself only at the end of the heap: where a thousand TLS sessions were, what little was allocated among
    them keeps all of it. Takes a millisecond or so, and some tens where the heap has gigabytes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it; others are more generous
        trim(0)
