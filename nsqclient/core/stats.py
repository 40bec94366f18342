"""The figures of consumers and producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One connection of a consumer."""

    address: str
    rdy: int
    in_flight: int
    queued: int  # delivered, waiting for a handler
    last_message_age: float  # seconds
    server_version: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """The figures of a consumer at one moment; counts are since it was opened, times are seconds."""

    received: int
    finished: int
    requeued: int
    given_up: int
    late_responses: int
    backoff_level: int
    backing_off_for: float  # 0: not backing off
    starved: bool
    connections: Sequence[ConnectionStats]
    oldest_queued_age: float = 0.0  # age of the next message in the queue
    buried: int = 0


@dataclass(frozen=True, slots=True)
class NodeStats:
    """One nsqd of a producer."""

    address: str
    connected: bool
    pending: int  # unanswered publishes
    pending_bytes: int
    server_version: str


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """The figures of a producer at one moment; counts are of messages since it was opened."""

    published: int
    failed: int
    nodes: Sequence[NodeStats]
