"""What the processes of a session take: memory and processor time. A worker, or a broker, is a session.

Postgres gives each of its children a session of its own, so the children of a session's first process count as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def megabytes(session: int) -> float:
    """Return the proportional set size of all processes of a session."""
    return sum(map(_pss, members(session))) / 1e6


def processor_seconds(session: int) -> float:
    """Return the processor time of all processes of a session, also of those that have ended, in steps of 10 ms."""
    return sum(map(_ticks, members(session))) / os.sysconf("SC_CLK_TCK")


def members(session: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and (os.getsid(int(name)) == session or _parent(int(name)) == session):
                yield int(name)
        except ProcessLookupError:
            pass


def _pss(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended meanwhile
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _parent(process: int) -> int:
    fields = _fields(process)
    return int(fields[1]) if fields else 0


def _ticks(process: int) -> int:
    # utime and stime, and those of children that have ended
    return sum(map(int, _fields(process)[11:15]))


def _fields(process: int) -> list[str]:
    """Return what /proc says after the process's name, or nothing if it has ended meanwhile."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
