"""The choices of `--ack`, which the log implements."""

from __future__ import annotations

from enum import StrEnum


class Ack(StrEnum):
    """When a publisher gets its OK."""

    MEMORY = "memory"  # at once, as NSQ promises
    WRITTEN = "written"  # after write(): survives any end of the process
    SYNCED = "synced"  # after fdatasync(): survives a power cut
