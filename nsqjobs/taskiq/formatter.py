"""The broker's formatter: parses a message, and buries it if no worker could ever run it; and finds a task's group.

taskiq's receiver logs a message that it can't parse or has no task for, and forgets it. From 0.13 on it acknowledges
such a message, which loses it; before that it never does, which repeats it forever. Only the formatter is called for
each message in the asyncio task that handles it, so the check is here.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from taskiq.abc.formatter import TaskiqFormatter
from taskiq.labels import parse_label, prepare_label

from nsqjobs.groups import GROUP, GROUP_BY, group_of

if TYPE_CHECKING:
    from taskiq import AsyncBroker, BrokerMessage, TaskiqMessage

    from nsqjobs.taskiq.deliveries import TaskDelivery

# The delivery that the current asyncio task handles. The receiver passes neither it nor the body to middlewares.
current_delivery: Final[ContextVar[TaskDelivery | None]] = ContextVar("current_delivery", default=None)


class TaskBody(bytes):
    """The body of a message, with its delivery."""

    delivery: TaskDelivery

    def __new__(cls, body: bytes, delivery: TaskDelivery) -> TaskBody:
        """Return a body that equals `body`."""
        made = super().__new__(cls, body)
        made.delivery = delivery
        return made


class BuryingFormatter(TaskiqFormatter):
    """Wraps the formatter of the user or of taskiq."""

    def __init__(self, inner: TaskiqFormatter, broker: AsyncBroker) -> None:
        self.inner = inner
        self._broker = broker

    def dumps(self, message: TaskiqMessage) -> BrokerMessage:
        """Return the message for the broker, with its group as a label. Raise ValueError for an invalid group."""
        self._set_group(message)
        return self.inner.dumps(message)

    def _set_group(self, message: TaskiqMessage) -> None:
        """Set the group by the arguments, unless the caller gave one or the function says no rule.

        The rule itself may be a function, which doesn't travel.
        """
        message.labels.pop(GROUP_BY, None)
        task = self._broker.find_task(message.task_name)
        by = task.labels.get(GROUP_BY) if task is not None else None
        if task is None or by is None or message.labels.get(GROUP):
            return
        group = group_of(by, task.original_func, message.args, message.kwargs)
        if group is not None:
            message.labels[GROUP], kind = prepare_label(group)
            message.labels_types = {**(message.labels_types or {}), GROUP: kind}

    def loads(self, message: bytes) -> TaskiqMessage:
        """Return the message of a task. If the inner formatter raises, bury the message and raise the same error."""
        if not isinstance(message, TaskBody):
            return self.inner.loads(message)
        delivery = message.delivery
        delivery.begin()
        current_delivery.set(delivery)
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
    """Parse the labels to raise the error that the receiver would hit later, without us."""
    for label, kind in (message.labels_types or {}).items():
        if label in message.labels:
            parse_label(message.labels[label], kind)
