"""What can be set about the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Ack(StrEnum):
    """When a publisher's receipt is settled."""

    MEMORY = "memory"  # at once, as NSQ does
    WRITTEN = "written"  # after write(): survives the end of the process, however it comes
    SYNCED = "synced"  # after fdatasync: survives a power cut


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    max_bytes_per_file: int = 100 * 1024 * 1024
    mem_queue_size: int = 10_000  # messages in a topic's tail cache
    mem_queue_bytes: int = 64 * 1024 * 1024  # the same in bytes
    sync_every: int = 2500  # messages that may be unsynced
    sync_timeout: float = 2.0  # seconds that they may be
    ack: str = Ack.WRITTEN
    disk_reserve: int = 0  # bytes that publishing leaves free; -1: see reserve.py
    topic_ack: Mapping[str, str] = field(default_factory=dict)

    def ack_of(self, topic: str) -> Ack:
        return Ack(self.topic_ack.get(topic, self.ack))
