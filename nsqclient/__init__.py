"""A client for NSQ on trio: consumers and producers.

Only the names in `__all__` are promised; modules with an underscore may change. `nsqclient.aio` is the same for
asyncio, `nsqclient.sync` is for plain scripts, and `nsqclient.testing` for tests.
"""

from nsqclient import events
from nsqclient._config import Config, options_of_flags
from nsqclient._consumer import Consumer, open_consumer, serve_consumer
from nsqclient._delivery import Answered
from nsqclient._errors import (
    AuthError,
    ConfigError,
    ConnectError,
    Disconnected,
    GiveUp,
    HandshakeError,
    NSQError,
    ProtocolError,
    PublishError,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
    Requeue,
    Stopped,
    TLSRefused,
)
from nsqclient._hostpool import Strategy, quorum
from nsqclient._message import Batch, Message
from nsqclient._producer import Producer, Receipt, open_producer
from nsqclient._stats import ConnectionStats, ConsumerStats, NodeStats, ProducerStats

__all__ = [
    "Answered",
    "AuthError",
    "Batch",
    "Config",
    "ConfigError",
    "ConnectError",
    "ConnectionStats",
    "Consumer",
    "ConsumerStats",
    "Disconnected",
    "GiveUp",
    "HandshakeError",
    "Message",
    "NSQError",
    "NodeStats",
    "Producer",
    "ProducerStats",
    "ProtocolError",
    "PublishError",
    "PublishRejected",
    "PublishUnknown",
    "PublishUnsent",
    "Receipt",
    "Requeue",
    "Stopped",
    "Strategy",
    "TLSRefused",
    "events",
    "open_consumer",
    "open_producer",
    "options_of_flags",
    "quorum",
    "serve_consumer",
]
