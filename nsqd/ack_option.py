"""The values of `--ack`.

The log implements them in `nsqd/log/topic_log.py`: for `memory`, `DiskLog.append` settles a publisher's receipt right
away; for `written`, `_write_to` settles it after the write; for `synced`, `Unsynced.synced` settles it after the sync; for
`remote`, `Unconfirmed.confirmed` settles it when the object store has the message.
`nsqd/client/outbox.py` holds back each OK until the receipt is settled.
"""

from __future__ import annotations

from enum import StrEnum


class Ack(StrEnum):
    """When a publisher gets its OK."""

    MEMORY = "memory"  # right away: all that NSQ promises
    WRITTEN = "written"  # after write(): the message survives a crash of nsqd, and kill -9
    SYNCED = "synced"  # after fdatasync(): the message survives a power cut
    REMOTE = "remote"  # when the store of --remote has it: the message survives the loss of the machine
