"""The time that a file may lie in a table's folder before a commit names it.

A crash leaves files that no commit names. Upkeep has to remove them some day, without removing files of a batch that is
still being written. Two limits keep these apart: we don't commit a file that was finished longer ago than `LEASE` (its
batch is repeated), and we don't remove an unnamed file before `ABANDONED_AFTER`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LEASE: Final = 12 * 3600.0  # seconds; far more than a batch takes
ABANDONED_AFTER: Final = 2 * LEASE  # clocks of executors, stores and disks may differ by half a day


class LeaseExpired(Exception):
    """A file is too old to be committed: it may have been removed."""


def check_leases(finished: Iterable[float], now: float) -> None:
    """Raise LeaseExpired if a file was finished too long ago. Times are in seconds since 1970."""
    oldest = min(finished, default=now)
    if now - oldest > LEASE:
        raise LeaseExpired(
            f"the batch took {(now - oldest) / 3600:.0f} hours, and its files may have been removed as leftovers after "
            f"{LEASE / 3600:.0f}: it is done again; smaller batches (maxRowsPerTrigger) end sooner"
        )
