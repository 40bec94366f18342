"""A client for NSQ on trio: consumers and producers.

Only the names in `__all__` are stable; `core`, `shell` and modules with an underscore may change. `nsqclient.aio` is
the same for asyncio, `nsqclient.sync` is for plain scripts, and `nsqclient.testing` for tests.

`core` decides and needs no loop. `shell` waits, and is written once for trio and asyncio, over the small runtime that
`_trio.py` and `aio.py` implement. Where to find the rules (see also docs/decisions/0006-client-library.md and 0033):

    RDY for each nsqd          core/flow.py          publish: choice of an nsqd   core/hostpool.py
    backoff                    core/backoff.py       publish: retries             shell/producer.py
    attempts, dead letters     core/consumption.py   publish: receipts            core/publication.py
    answers to a message       core/delivery.py      handshake, frames            core/connection.py
    cancel, reschedule         core/recall.py        reconnecting                 core/reconnect.py, shell/node.py
    which nsqds are listed     core/listings.py      asking nsqlookupd            shell/discovery.py
    which nsqds are followed   shell/sources.py, then shell/subscription.py
    which topic gets how much  core/shares.py
    which nsqds are members    core/node_list.py, then core/membership.py, then core/roster.py (producers)
"""

from nsqclient import events
from nsqclient._trio import open_consumer, open_producer, serve_consumer
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
from nsqclient.shell.batches import Batch
from nsqclient.shell.consumer import Consumer
from nsqclient.shell.message import Message
from nsqclient.shell.producer import Producer, Receipt

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
