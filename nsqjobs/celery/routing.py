"""Maps queues and exchanges to topics and channels.

A lasting queue is a topic with the channel `jobs`. The publishing process has to know its bindings and resolves them,
as with all brokers without exchanges.

A passing queue disappears with its consumer: a worker's mailbox, a monitor's queue, a client's queue of replies. The
publishing process doesn't know it. So the exchange is the topic, and each passing queue is a channel of it; all of them
are ephemeral:

    exchange            topic                                     the queue gets
    fanout, `topic`     the exchange                              everything; messages that match its binding
    direct              the exchange and the routing key          everything

A direct or topic exchange with lasting queues isn't a topic, unless the same process also binds a passing queue to it.
A passing queue without an exchange is a topic of its own, also ephemeral.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nsqjobs.names import CHANNEL, topic_name

_PASSING_CHANNEL: Final = f"{CHANNEL}#ephemeral"

_WILDCARDS: Final = {"*": r"[^.]+", "#": r".*"}


@dataclass(frozen=True, slots=True)
class QueueChannel:
    """A channel to consume from, for a queue."""

    topic: str
    channel: str
    accepts: Callable[[str], bool] | None = None  # by routing key; None: everything
    since: float = 0.0  # earlier messages aren't for this queue; seconds since 1970
    level: int = 0  # of priority


def lasting(queue: str, level: int = 0) -> QueueChannel:
    """Return the topic and channel of a queue. Priorities above 0 have their own topics."""
    return QueueChannel(topic_name(f"{queue}.p{level}" if level else queue), CHANNEL, level=level)


def passing(queue: str) -> QueueChannel:
    """Return the topic and channel of a passing queue without an exchange."""
    return QueueChannel(topic_name(queue, ephemeral=True), _PASSING_CHANNEL)


def exchange_topic(exchange: str, kind: str, routing_key: str) -> str:
    """Return the topic of an exchange that may have passing queues."""
    name = f"{exchange}.{routing_key}" if kind == "direct" and routing_key else exchange
    return topic_name(name, ephemeral=True)


def bound(queue: str, exchange: str, kind: str, routing_key: str, since: float) -> QueueChannel:
    """Return the topic and channel of a passing queue for an exchange's messages."""
    return QueueChannel(
        exchange_topic(exchange, kind, routing_key),
        topic_name(queue, ephemeral=True),
        accepts=matcher(routing_key) if kind == "topic" else None,
        since=since,
    )


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return True if a routing key matches a binding: `*` is one word, `#` any number.

    As in kombu, `#.` and `.#` include the point: `a.#` doesn't match `a`.
    """
    words = (_WILDCARDS.get(word) or re.escape(word) for word in pattern.split("."))
    fullmatch = re.compile(r"\.".join(words), re.DOTALL).fullmatch
    return lambda routing_key: fullmatch(routing_key) is not None


def level_of(priority: int, steps: tuple[int, ...]) -> int:
    """Return the highest step up to the priority."""
    return max((step for step in steps if step <= priority), default=0)
