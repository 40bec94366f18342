"""The settings of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqd.broker.latency import LatencySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of the broker, without defaults, because nsqd's options define those."""

    mem_queue_size: int  # the limit of an ephemeral channel, together with `mem_queue_bytes`
    mem_queue_bytes: int
    max_msg_timeout: float  # seconds
    latency: LatencySettings | None  # None: don't measure latency
    prefers_near_consumers: bool
    idempotence_window: int  # how many nanoseconds to remember a key; 0: don't
    idempotence_keys: int  # how many keys to remember, over all topics
