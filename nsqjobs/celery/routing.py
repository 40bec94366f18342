"""Which topic and channel stand for a queue, and for an exchange.

A lasting queue is a topic with the channel `jobs`, and whoever publishes has to know its bindings: they are resolved in
the process that publishes, as with all brokers that know no exchanges.

A passing queue is one that goes away with its consumer: the mailbox of a worker, the queue of a monitor, a client's queue
of replies. The process that publishes does not know it. So the exchange is the topic, and each passing queue is a channel
of it; all of them are ephemeral:

    exchange            topic                                     what the queue takes
    fanout, `topic`     the exchange                              everything; what matches its binding
    direct              the exchange and the routing key          everything

A direct or topic exchange with lasting queues is not a topic, unless a passing queue is bound to it, too, in the same
process. A passing queue without an exchange is a topic of its own, ephemeral as well.
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
    since: float = 0.0  # what was published earlier is not for this queue; seconds since 1970
    level: int = 0  # of priority


def lasting(queue: str, level: int = 0) -> QueueChannel:
    """Return where the jobs of a queue are. Levels above 0 are topics of their own."""
    return QueueChannel(topic_name(f"{queue}.p{level}" if level else queue), CHANNEL, level=level)


def passing(queue: str) -> QueueChannel:
    """Return where the messages of a passing queue without an exchange are."""
    return QueueChannel(topic_name(queue, ephemeral=True), _PASSING_CHANNEL)


def exchange_topic(exchange: str, kind: str, routing_key: str) -> str:
    """Return the topic of an exchange that passing queues may be bound to."""
    name = f"{exchange}.{routing_key}" if kind == "direct" and routing_key else exchange
    return topic_name(name, ephemeral=True)


def bound(queue: str, exchange: str, kind: str, routing_key: str, since: float) -> QueueChannel:
    """Return where a passing queue gets the messages of an exchange."""
    return QueueChannel(
        exchange_topic(exchange, kind, routing_key),
        topic_name(queue, ephemeral=True),
        accepts=matcher(routing_key) if kind == "topic" else None,
        since=since,
    )


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return whether a routing key matches a binding: `*` is one word, `#` any number of them.

    As in kombu, `#.` and `.#` include the point: `a.#` does not match `a`.
    """
    words = (_WILDCARDS.get(word) or re.escape(word) for word in pattern.split("."))
    fullmatch = re.compile(r"\.".join(words), re.DOTALL).fullmatch
    return lambda routing_key: fullmatch(routing_key) is not None


def level_of(priority: int, steps: tuple[int, ...]) -> int:
    """Return the highest step that is not above the priority."""
    return max((step for step in steps if step <= priority), default=0)
