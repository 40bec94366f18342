"""A client for NSQ on trio: consumers and producers.

Only the names in `__all__` are promised; `core` and modules with an underscore may change. `nsqclient.aio` is the same for
asyncio, `nsqclient.sync` is for plain scripts, and `nsqclient.testing` for tests.

Where the rules are; docs/decisions/0006-client-library.md says more:

    RDY for each nsqd          core/flow.py          publish: choice of an nsqd   core/hostpool.py
    backoff                    core/backoff.py       publish: retries             shell/producer.py
    attempts, dead letters     core/consumption.py   publish: receipts            core/publication.py
    answers to a message       core/delivery.py      handshake, frames            core/connection.py
    cancel, reschedule         core/recall.py        reconnecting                 core/reconnect.py
    which nsqds are listed     core/listings.py
    which nsqds are followed   shell/sources.py, then _consumer.py or _aio_consumer.py
    which nsqds are members    core/membership.py, of what core/node_list.py reads, by core/roster.py (producers)
"""

from nsqclient import events
from nsqclient._consumer import Consumer, open_consumer, serve_consumer
from nsqclient._message import Message
from nsqclient._producer import Producer, Receipt, open_producer
from nsqclient.core.batches import Batch
from nsqclient.core.config import Config, options_of_flags
from nsqclient.core.delivery import Answered
from nsqclient.core.errors import (
    AuthError,
    ConfigError,
    ConnectError,
    Disconnected,
    GiveUp,
    HandshakeError,
    Incomplete,
    NSQError,
    OutcomeUnknown,
    ProtocolError,
    PublishError,
    PublishRejected,
    PublishUnknown,
    PublishUnsent,
    Requeue,
    Stopped,
    TLSRefused,
    Unsupported,
)
from nsqclient.core.hostpool import Strategy, quorum
from nsqclient.core.results import CancelResult, NodeFailure, RescheduleResult
from nsqclient.core.stats import ConnectionStats, ConsumerStats, NodeStats, ProducerStats

__all__ = [
    "Answered",
    "AuthError",
    "Batch",
    "CancelResult",
    "Config",
    "ConfigError",
    "ConnectError",
    "ConnectionStats",
    "Consumer",
    "ConsumerStats",
    "Disconnected",
    "GiveUp",
    "HandshakeError",
    "Incomplete",
    "Message",
    "NSQError",
    "NodeFailure",
    "NodeStats",
    "OutcomeUnknown",
    "Producer",
    "ProducerStats",
    "ProtocolError",
    "PublishError",
    "PublishRejected",
    "PublishUnknown",
    "PublishUnsent",
    "Receipt",
    "Requeue",
    "RescheduleResult",
    "Stopped",
    "Strategy",
    "TLSRefused",
    "Unsupported",
    "events",
    "open_consumer",
    "open_producer",
    "options_of_flags",
    "quorum",
    "serve_consumer",
]
