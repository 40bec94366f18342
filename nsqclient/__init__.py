"""A client for NSQ on trio: consumers and producers.

Only the names in `__all__` are promised; modules with an underscore may change. `nsqclient.aio` is the same for
asyncio, `nsqclient.sync` is for plain scripts, and `nsqclient.testing` for tests.

Where the rules are; docs/decisions/0006-client-library.md says more:

    RDY for each nsqd         _flow.py                 publish: choice of an nsqd   _hostpool.py
    backoff                   _backoff.py              publish: retries             _base_producer.py
    attempts, dead letters    _consumption.py          publish: receipts            _publication.py
    answers to a message      _delivery.py             handshake, frames            _connection.py
    cancel, reschedule        _recall.py
    which nsqds are listed    _listings.py             reconnecting                 _reconnect.py
    which nsqds are followed  _sources.py, then _consumer.py or _aio_consumer.py
    which nsqds are members   _membership.py, of what _node_list.py reads, by _roster.py (producers)
"""

from nsqclient import events
from nsqclient._batches import Batch
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
from nsqclient._hostpool import Strategy, quorum
from nsqclient._message import Message
from nsqclient._producer import Producer, Receipt, open_producer
from nsqclient._results import CancelResult, NodeFailure, RescheduleResult
from nsqclient._stats import ConnectionStats, ConsumerStats, NodeStats, ProducerStats

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
