"""How much memory the process has, and giving back what it does not use."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """0 where there is no /proc."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * _PAGE
    except OSError:
        return 0


def return_unused() -> None:
    """Gives the operating system what the C library keeps between pieces that are in use.

    It does so by itself only at the end of the heap: where a thousand TLS sessions were, what little was allocated among
    them keeps all of it. Takes a millisecond or so, and some tens where the heap has gigabytes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it; others are more generous
        trim(0)
