"""The broker's formatter: reads a message, and has it buried if no worker could ever run it.

taskiq's receiver logs a message that it cannot read, or whose task it does not know, and forgets it: from 0.13 on it
acknowledges such a message, which loses it, and before that it never does, which repeats it for ever. Nothing but the
formatter is asked about each message, in the asyncio task that handles it. So this is where the broker looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskiq.abc.formatter import TaskiqFormatter
from taskiq.labels import parse_label

if TYPE_CHECKING:
    from taskiq import AsyncBroker, BrokerMessage, TaskiqMessage

    from nsqjobs.taskiq.deliveries import TaskDelivery


class TaskBody(bytes):
    """The body of a message, which knows its delivery."""

    delivery: TaskDelivery

    def __new__(cls, body: bytes, delivery: TaskDelivery) -> TaskBody:
        """Return a body that equals `body`."""
        made = super().__new__(cls, body)
        made.delivery = delivery
        return made


class BuryingFormatter(TaskiqFormatter):
    """The formatter of a user or of taskiq, and what has to happen with the message besides."""

    def __init__(self, inner: TaskiqFormatter, broker: AsyncBroker) -> None:
        self.inner = inner
        self._broker = broker

    def dumps(self, message: TaskiqMessage) -> BrokerMessage:
        """Return the message for the broker."""
        return self.inner.dumps(message)

    def loads(self, message: bytes) -> TaskiqMessage:
        """Return the message of a task. Raise what the inner formatter raises, once the message is buried."""
        if not isinstance(message, TaskBody):
            return self.inner.loads(message)
        delivery = message.delivery
        delivery.begin()
        try:
            loaded = self.inner.loads(delivery.message.body)  # orjson accepts no subclass of bytes
            _check_labels(loaded)
        except Exception as error:
            delivery.bury(f"cannot be read: {error!r}")
            raise
        if self._broker.find_task(loaded.task_name) is None:
            delivery.bury(f"this worker has no task {loaded.task_name}")
        return loaded


def _check_labels(message: TaskiqMessage) -> None:
    """Raise what the receiver will meet when it parses the labels, which it does without us."""
    for label, kind in (message.labels_types or {}).items():
        if label in message.labels:
            parse_label(message.labels[label], kind)
