"""CPU cores: how many this process may use, and how to yield one for a moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final


def usable_cores() -> int:
    """Return the number of cores this process may use, or the total number of cores if we can't find out."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _do_nothing() -> None: ...


yield_core: Final[Callable[[], None]] = getattr(os, "sched_yield", _do_nothing)
