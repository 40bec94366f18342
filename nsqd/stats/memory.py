"""The `memory` block of `/stats`: NSQ's names for Go's heap, with Python's closest equivalents."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass

from nsqcommon.memory import resident_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """The figures of the `memory` block. Some have no meaning in Python and stay 0."""

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
    """Return the allocated blocks, the resident bytes, and the number of garbage collections."""
    return MemorySnapshot(
        heap_objects=sys.getallocatedblocks(),
        heap_in_use_bytes=resident_bytes(),
        gc_total_runs=sum(generation["collections"] for generation in gc.get_stats()),
    )
