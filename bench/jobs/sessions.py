"""What the processes of a session take: memory and processor time. A worker, or a broker, is a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def megabytes(session: int) -> float:
    """Return the proportional set size of all processes of a session."""
    return sum(map(_pss, members(session))) / 1e6


def processor_seconds(session: int) -> float:
    """Return the processor time of all processes of a session, in steps of 10 ms."""
    return sum(map(_ticks, members(session))) / os.sysconf("SC_CLK_TCK")


def members(session: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getsid(int(name)) == session:
                yield int(name)
        except ProcessLookupError:
            pass


def _pss(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended meanwhile
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _ticks(process: int) -> int:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])  # utime and stime
