"""Schedules by time, kept by nsqd itself: `NsqScheduleSource`.

A task that is to run at a given time is published at once and deferred until then, under a key made of the schedule's
id. So no scheduler process has to run for it, and `delete_schedule` takes the message back.
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
    """Has nsqd defer tasks until their time. For schedules by cron or interval use another source.

    An id is for one schedule: nsqd makes a second publish with the same key only when it has forgotten the first one.
    So an id that this source has seen is refused; it remembers the last ten thousand.
    """

    def __init__(self, broker: NsqBroker) -> None:
        self.broker = broker
        self._seen: OrderedDict[str, None] = OrderedDict()

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return nothing: a scheduler process has nothing to send, as nsqd does that by itself."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Publish the task, deferred until its time. Raise ValueError for a schedule that nsqd cannot keep."""
        if schedule.time is None:
            raise ValueError(
                "NsqScheduleSource has schedules by time only: for cron and interval use taskiq's LabelScheduleSource,"
                " or a source with a store, such as taskiq-redis' ListRedisScheduleSource"
            )
        queue = queue_of(schedule.labels, self.broker.queue)
        if queue not in self.broker.queues:
            raise ValueError(f"the broker does not know the queue {queue!r}: name it in more_queues")
        if schedule.schedule_id in self._seen:
            raise ValueError(f"the id {schedule.schedule_id!r} was used before: take another one for another schedule")
        deferring = _DeferringBroker(self.broker, due=eta_of_time(schedule.time), key=key_of(schedule.schedule_id))
        kicker = AsyncKicker(schedule.task_name, deferring, dict(schedule.labels))  # type: ignore[var-annotated]  # of any task
        kicker.with_labels(schedule_id=schedule.schedule_id).with_task_id(schedule.task_id)
        await kicker.kiq(*schedule.args, **schedule.kwargs)
        self._remember(schedule.schedule_id)  # now: after an error the same id may be tried again, which is made once

    async def delete_schedule(self, schedule_id: str) -> None:
        """Take the task back, unless a worker has it. Raise nsqclient.Incomplete if an nsqd has given no answer."""
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
    """The broker as one schedule sees it: with its middlewares, and a time and a key for what is sent.

    They are no labels, because a retry of the task has the same labels: it would be published with the same key, and
    nsqd would not make it.
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
