"""What happens to a consumer or producer: `async for event in consumer.events()`. Compare with `match` or `isinstance`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqclient._delivery import Delivery


@dataclass(frozen=True, slots=True)
class Connected:
    """An nsqd has been connected to, and is ready."""

    address: str
    server_version: str


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """An nsqd could not be connected to. `failures` counts those in a row."""

    address: str
    reason: str
    failures: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection has gone."""

    address: str
    reason: str  # empty where it was we who closed it
    left: int  # how many connections there still are


@dataclass(frozen=True, slots=True)
class Refused:
    """nsqd has answered with an error that belongs to no message."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class Limited:
    """An nsqd, or both ends together, offer less than was asked for."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class LateResponse:
    """A message was answered after nsqd had taken it back; it is delivered again."""

    id: str
    address: str
    text: str


@dataclass(frozen=True, slots=True)
class BackoffStarted:
    """Nothing is asked for during `seconds`; then a single message is."""

    level: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BackoffEnded:
    """Everything goes at full speed again."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A message was tried too often, or its handler said that it is hopeless."""

    message: Delivery
    reason: str


@dataclass(frozen=True, slots=True)
class DiscoveryRound:
    """What the nsqlookupds know now: how many nsqd have the topic, and how many nsqlookupds did not answer."""

    found: int
    failed: int


@dataclass(frozen=True, slots=True)
class LookupFailed:
    """An nsqlookupd did not answer as it should."""

    lookupd: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """An nsqd that nsqlookupd lists cannot be reached, time and again: is its broadcast address right?"""

    address: str
    hostname: str
    remote_address: str
    failures: int


@dataclass(frozen=True, slots=True)
class LatePublish:
    """A publish whose caller was cancelled has its answer now."""

    topic: str
    error: Exception | None


Event = (
    Connected
    | ConnectFailed
    | Disconnected
    | Refused
    | Limited
    | LateResponse
    | BackoffStarted
    | BackoffEnded
    | GaveUp
    | DiscoveryRound
    | LookupFailed
    | Unreachable
    | LatePublish
)
