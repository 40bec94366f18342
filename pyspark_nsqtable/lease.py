"""How long a file may lie in a table's folder before a commit names it.

A crash leaves files that nobody names, and somebody has to remove them one day, without ever taking a file of a batch that
is still being written. The two never meet: a file that was finished longer ago than `LEASE` is not committed any more (its
batch is done again), and one that is not named is not removed before `ABANDONED_AFTER`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LEASE: Final = 12 * 3600.0  # seconds; far more than a batch takes
ABANDONED_AFTER: Final = 2 * LEASE  # clocks of executors, stores and disks may differ by half a day


class LeaseExpired(Exception):
    """A file is too old to be committed: it may be gone."""


def check_leases(finished: Iterable[float], now: float) -> None:
    """Raises when a file that was finished at one of these times, in seconds since 1970, is not to be committed."""
    oldest = min(finished, default=now)
    if now - oldest > LEASE:
        raise LeaseExpired(
            f"the batch took {(now - oldest) / 3600:.0f} hours, and its files may have been removed as leftovers after "
            f"{LEASE / 3600:.0f}: it is done again; smaller batches, as by maxRowsPerTrigger, end sooner"
        )
