"""The choices of `--ack`.

The log acts on them: `DiskLog._take_over` in `nsqd/log/topic_log.py` settles the receipts of publishers, now or after
the sync. `nsqd/client/outbox.py` holds each OK until its receipt is settled.
"""

from __future__ import annotations

from enum import StrEnum


class Ack(StrEnum):
    """When a publisher gets its OK."""

    MEMORY = "memory"  # at once: NSQ's promise
    WRITTEN = "written"  # after write(): survives the end of the process, however it ends
    SYNCED = "synced"  # after fdatasync(): survives a power cut
