"""The choices of `--ack`, which the log implements."""

from __future__ import annotations

from enum import StrEnum


class Ack(StrEnum):
    """When a publisher gets its OK."""

    MEMORY = "memory"  # at once: NSQ's promise
    WRITTEN = "written"  # after write(): survives the end of the process, however it ends
    SYNCED = "synced"  # after fdatasync(): survives a power cut
