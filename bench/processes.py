"""What a process takes: memory and processor time. And a wait for what a process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Final

from bench.work import Failed

_CPUCLOCK_SCHED: Final = 2


def resident_megabytes(pid: int | None, which: str = "VmRSS") -> float:
    """Return the resident memory now, or with VmHWM the most that it has been."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise Failed(f"/proc/{pid}/status has no {which}")


def processor_seconds(pid: int | None) -> float:
    """Return the time of all threads, by the process's own clock: the ticks of /proc/PID/stat are too coarse."""
    if pid is None:
        return nan
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)  # clock_getcpuclockid(3), which Python lacks


def processor_share(pid: int | None, seconds: float) -> float:
    """Return the use of the processor over the next seconds, in percent of one core."""
    before, began = processor_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (processor_seconds(pid) - before) / (time.monotonic() - began)


def wait_until(is_so: Callable[[], bool], seconds: float, what: str, pause: float = 0.05) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise Failed(f"not within {seconds:.0f} seconds: {what}")
        time.sleep(pause)
