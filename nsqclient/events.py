"""Events of a consumer or producer: `async for event in consumer.events()`, and `match` or `isinstance`.

They are the same on trio and on asyncio.
"""

from nsqclient.core.events import (
    BackoffEnded,
    BackoffStarted,
    Connected,
    ConnectFailed,
    Disconnected,
    DiscoveryRound,
    Event,
    GaveUp,
    LatePublish,
    LateResponse,
    Limited,
    LookupFailed,
    NodeIgnored,
    NodesChanged,
    Refused,
    Unreachable,
)

__all__ = [
    "BackoffEnded",
    "BackoffStarted",
    "ConnectFailed",
    "Connected",
    "Disconnected",
    "DiscoveryRound",
    "Event",
    "GaveUp",
    "LatePublish",
    "LateResponse",
    "Limited",
    "LookupFailed",
    "NodeIgnored",
    "NodesChanged",
    "Refused",
    "Unreachable",
]
