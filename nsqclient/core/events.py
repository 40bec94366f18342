"""Events of a consumer or producer: `async for event in consumer.events()`, and `match` or `isinstance`.

They are the same on trio and on asyncio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqclient.core.delivery import Delivery


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection to an nsqd is open."""

    address: str
    server_version: str


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """Connecting to an nsqd failed. `failures` counts the failures in a row."""

    address: str
    reason: str
    failures: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection has ended."""

    address: str
    reason: str  # empty if this side closed it
    left: int  # the number of connections that are still open


@dataclass(frozen=True, slots=True)
class Refused:
    """nsqd sent an error that isn't about a message."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class Limited:
    """An nsqd offers less than was requested."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class LateResponse:
    """A message was answered too late; nsqd delivers it again."""

    id: str
    address: str
    text: str


@dataclass(frozen=True, slots=True)
class BackoffStarted:
    """Backoff: the consumer receives nothing for `seconds`, and then a single message."""

    level: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BackoffEnded:
    """The consumer receives at full speed again."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A message had too many attempts, or its handler raised GiveUp."""

    message: Delivery
    reason: str
    buried: bool = False  # False: it becomes a dead letter or is finished


@dataclass(frozen=True, slots=True)
class DiscoveryRound:
    """nsqlookupd was asked: how many nsqds it lists, and how many nsqlookupds failed."""

    found: int
    failed: int


@dataclass(frozen=True, slots=True)
class LookupFailed:
    """A query to an nsqlookupd failed."""

    lookupd: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """nsqlookupd lists an nsqd that several attempts couldn't reach: its broadcast address may be wrong."""

    address: str
    hostname: str
    remote_address: str
    failures: int


@dataclass(frozen=True, slots=True)
class NodeIgnored:
    """A producer ignores an nsqd that nsqlookupd lists. Reported once for each address."""

    address: str
    lookupd: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """The nsqds that a producer publishes to have changed, because of nsqlookupd or of a connection."""

    addresses: tuple[str, ...]  # that get new publishes
    members: int  # all known nsqds


@dataclass(frozen=True, slots=True)
class LatePublish:
    """nsqd has answered a publish that its caller had cancelled."""

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
    | NodeIgnored
    | NodesChanged
    | LatePublish
)
