"""The choices of `--ack`.

The log acts on them, in `nsqd/log/topic_log.py`: `DiskLog.append` settles a publisher's receipt at once for `memory`,
`_take_over` after the write or the sync for the others. `nsqd/client/outbox.py` holds each OK until its receipt is
settled.
"""

from __future__ import annotations

from enum import StrEnum


class Ack(StrEnum):
    """When a publisher gets its OK."""

    MEMORY = "memory"  # at once: NSQ's promise
    WRITTEN = "written"  # after write(): survives the end of the process, however it ends
    SYNCED = "synced"  # after fdatasync(): survives a power cut
