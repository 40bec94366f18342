"""The `memory` block of `/stats`: NSQ's words for Go's heap, with what Python can tell of its own."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """What has no meaning in Python stays 0."""

    heap_objects: int
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int


def memory_now() -> MemorySnapshot:
    """Allocated blocks, resident bytes, and how often the garbage collector ran."""
    try:
        resident = int(_STATM.read_text("ascii").split()[1]) * _PAGE
    except OSError:  # no /proc in this container
        resident = 0
    return MemorySnapshot(
        heap_objects=sys.getallocatedblocks(),
        heap_in_use_bytes=resident,
        gc_total_runs=sum(generation["collections"] for generation in gc.get_stats()),
    )
