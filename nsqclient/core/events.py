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
    """An nsqd could not be connected to. `failures` counts the failures in a row."""

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
    """nsqd has answered with an error that belongs to no message."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class Limited:
    """An nsqd offers less than was requested."""

    address: str
    text: str


@dataclass(frozen=True, slots=True)
class LateResponse:
    """A message was answered after nsqd had taken it back; nsqd delivers it again."""

    id: str
    address: str
    text: str


@dataclass(frozen=True, slots=True)
class BackoffStarted:
    """The consumer receives nothing for `seconds`, and then a single message."""

    level: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BackoffEnded:
    """The consumer receives at full speed again."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """A message was attempted too often, or its handler raised GiveUp."""

    message: Delivery
    reason: str
    buried: bool = False  # nsqd keeps it; otherwise it becomes a dead letter, or is finished


@dataclass(frozen=True, slots=True)
class DiscoveryRound:
    """The result of asking nsqlookupd: the numbers of nsqds found and of nsqlookupds that failed to answer."""

    found: int
    failed: int


@dataclass(frozen=True, slots=True)
class LookupFailed:
    """A query to an nsqlookupd failed."""

    lookupd: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """An nsqd that nsqlookupd lists cannot be reached after several attempts: its broadcast address may be wrong."""

    address: str
    hostname: str
    remote_address: str
    failures: int


@dataclass(frozen=True, slots=True)
class NodeIgnored:
    """A producer does not use an nsqd that nsqlookupd lists. Reported once for each address."""

    address: str
    lookupd: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodesChanged:
    """A producer publishes to other nsqds than before, because nsqlookupd says so or connections came or went."""

    addresses: tuple[str, ...]  # that get new publishes
    members: int  # nsqds that are known, whether they get some or not


@dataclass(frozen=True, slots=True)
class LatePublish:
    """A publish whose caller was cancelled has been answered."""

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
