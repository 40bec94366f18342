"""The settings of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqd.broker.latency import LatencySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Has no defaults: nsqd's options define the only ones."""

    mem_queue_size: int  # with `mem_queue_bytes`, the bound of what waits in an ephemeral channel
    mem_queue_bytes: int
    max_msg_timeout: float  # seconds
    latency: LatencySettings | None  # None: nobody wants to know how long messages take
    prefers_near_consumers: bool
    idempotence_window: int  # nanoseconds that a key is remembered; 0: not at all
    idempotence_keys: int  # how many at most, of all topics
