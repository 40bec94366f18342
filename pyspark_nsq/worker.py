"""What is to be said to the Python processes in which Spark runs tasks."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_imports() -> None:
    """A worker collects garbage after each task, and looks through all that was ever imported: 30 ms, a seventh of what
    reading 100,000 rows costs. What is there now stays until the process ends anyway."""
    gc.collect()
    gc.freeze()
