"""Schedules by time, kept by nsqd: `NsqScheduleSource`.

A task with a given time is published at once and deferred until then, with a key made from the schedule's id. So it
needs no scheduler process, and `delete_schedule` cancels the message.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage, ScheduleSource
from taskiq.kicker import AsyncKicker

from nsqjobs.headers import eta_of_time
from nsqjobs.taskiq.labels import queue_of

if TYPE_CHECKING:
    from taskiq import ScheduledTask

    from nsqjobs.taskiq.broker import NsqBroker

_REMEMBERED: Final = 10_000  # ids
_PREFIX: Final = "schedule."
_is_plain: Final = re.compile(r"[!-~]{1,50}", re.ASCII).fullmatch


class NsqScheduleSource(ScheduleSource):
    """Defers tasks in nsqd until their time. For cron or interval schedules use another source.

    Use each id for one schedule: nsqd drops a second publish with the same key until it has forgotten the first one. So
    this source refuses ids that it has seen; it remembers the last ten thousand.
    """

    def __init__(self, broker: NsqBroker) -> None:
        self.broker = broker
        self._seen: OrderedDict[str, None] = OrderedDict()

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return nothing: nsqd delivers by itself, so a scheduler process has nothing to send."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Publish the task, deferred until its time. Raise ValueError for a schedule that nsqd can't keep."""
        if schedule.time is None:
            raise ValueError(
                "NsqScheduleSource only has schedules by time: for cron and interval use taskiq's LabelScheduleSource,"
                " or a source with a store, such as taskiq-redis' ListRedisScheduleSource"
            )
        queue = queue_of(schedule.labels, self.broker.queue)
        if queue not in self.broker.queues:
            raise ValueError(f"the broker does not know the queue {queue!r}: name it in more_queues")
        if schedule.schedule_id in self._seen:
            raise ValueError(f"the id {schedule.schedule_id!r} was used before: use another id for another schedule")
        deferring = _DeferringBroker(self.broker, due=eta_of_time(schedule.time), key=key_of(schedule.schedule_id))
        kicker = AsyncKicker(schedule.task_name, deferring, dict(schedule.labels))  # type: ignore[var-annotated]  # of any task
        kicker.with_labels(schedule_id=schedule.schedule_id).with_task_id(schedule.task_id)
        await kicker.kiq(*schedule.args, **schedule.kwargs)
        self._remember(schedule.schedule_id)  # only now, so you can retry the id after an error

    async def delete_schedule(self, schedule_id: str) -> None:
        """Cancel the task, unless a worker has it. Raise nsqclient.Incomplete if an nsqd didn't answer."""
        self._remember(schedule_id)
        await self.broker.cancel(key_of(schedule_id))

    def _remember(self, schedule_id: str) -> None:
        self._seen[schedule_id] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)


def key_of(schedule_id: str) -> str:
    """Return the key of a schedule: its id if that is printable and short, otherwise a hash."""
    if _is_plain(schedule_id):
        return _PREFIX + schedule_id
    return _PREFIX + hashlib.sha256(schedule_id.encode("utf-8", "surrogatepass")).hexdigest()[:50]


class _DeferringBroker(AsyncBroker):
    """The broker for one schedule: with its middlewares, and a time and key for the message.

    Time and key aren't labels, because a retry of the task has the same labels: it would have the same key, and nsqd
    would drop it as a repeat.
    """

    def __init__(self, broker: NsqBroker, *, due: float, key: str) -> None:
        super().__init__()
        self._broker = broker
        self._due = due
        self._key = key
        self.middlewares = broker.middlewares
        self.formatter = broker.formatter
        self.id_generator = broker.id_generator

    async def kick(self, message: BrokerMessage) -> None:
        await self._broker.publish(message, delay=self._due - time.time(), key=self._key)

    def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        raise NotImplementedError
