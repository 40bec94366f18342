"""What consumers and producers tell about themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One connection of a consumer."""

    address: str
    rdy: int
    in_flight: int
    queued: int  # delivered, not yet handed to a handler
    last_message_age: float
    server_version: str


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer as it is now; counts are since it was opened."""

    received: int
    finished: int
    requeued: int
    given_up: int
    late_responses: int
    backoff_level: int
    backing_off_for: float  # 0 when not waiting
    starved: bool
    connections: Sequence[ConnectionStats]
    oldest_queued_age: float = 0.0  # how long the next message has waited here for a handler


@dataclass(frozen=True, slots=True)
class NodeStats:
    """One nsqd of a producer."""

    address: str
    connected: bool
    pending: int  # publishes without an answer
    pending_bytes: int
    server_version: str


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """A producer as it is now; counts are of messages since it was opened."""

    published: int
    failed: int
    nodes: Sequence[NodeStats]
