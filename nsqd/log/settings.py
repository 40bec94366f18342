"""The settings of the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqd.ack import Ack
    from nsqd.log.retention import Retention

_SHORTEST_INTERVAL: Final = 1.0
_LONGEST_INTERVAL: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Has no defaults: nsqd's options define the only ones."""

    max_bytes_per_file: int
    mem_queue_size: int  # messages in a topic's tail cache
    mem_queue_bytes: int  # the same in bytes
    sync_every: int  # how many messages may be unsynced
    sync_timeout: float  # for how many seconds
    ack: Ack
    topic_ack: Mapping[str, Ack]
    disk_reserve: int  # bytes that publishing leaves free; -1: see reserve.py
    retention: Retention
    topic_retention: Mapping[str, Retention]
    idempotence_window: int  # nanoseconds for which keys are remembered

    def ack_of(self, topic: str) -> Ack:
        return self.topic_ack.get(topic, self.ack)

    @property
    def retention_interval(self) -> float | None:
        """Seconds between two looks for segments that have become too old; None: nothing ever becomes too old."""
        given = [retention for retention in (self.retention, *self.topic_retention.values()) if retention]
        if not given and not self.idempotence_window:
            return None
        times = [retention.time for retention in given if retention.time]
        if self.idempotence_window:
            times.append(self.idempotence_window)
        shortest = min((time / 1e9 for time in times), default=inf)
        return min(max(shortest / 10, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)

    def retention_of(self, topic: str) -> Retention:
        return self.topic_retention.get(topic, self.retention)
