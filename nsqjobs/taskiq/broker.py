"""taskiq's broker on nsqd: `NsqBroker`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from nsqclient import CancelResult, ConnectError, PublishRejected, PublishUnsent, aio
from nsqjobs.addresses import parse_url
from nsqjobs.delays import DelayLimit, give_back_early
from nsqjobs.headers import Job
from nsqjobs.names import CHANNEL, topic_name
from nsqjobs.reporting import Reporter
from nsqjobs.taskiq.deliveries import Deliveries
from nsqjobs.taskiq.formatter import BuryingFormatter, TaskBody
from nsqjobs.taskiq.labels import delay_of, group_of, queue_of, retries_of
from nsqjobs.taskiq.reports import Reports
from nsqjobs.taskiq.runs import note_sent

if TYPE_CHECKING:
    from taskiq.abc.formatter import TaskiqFormatter

LIBRARY: Final = "taskiq"

_PAUSE: Final = 0.1  # seconds between two attempts to reach an nsqd
_MAX_ASYNC_TASKS: Final = 100  # taskiq's default for --max-async-tasks


class NsqBroker(AsyncBroker):
    """Sends tasks to topics of nsqd, and receives them for workers.

    A task goes to `queue`, or to the queue in its label `queue_name`. Its group is in its label `nsq_group`, or follows
    from its arguments by the label `nsq_group_by` of its function (see nsqjobs/groups.py). Workers take tasks from
    `queue` and `more_queues`. `max_in_flight` is the maximum number of tasks that nsqd gives one worker process from
    each queue: the sum of taskiq's `--max-async-tasks` and `--max-prefetch`. The URL can set this and all other options
    of NSQ's clients. Sending a task raises ConnectError if no nsqd is reachable for `send_timeout` seconds, so nsqd may
    take that long to restart. With `report`, workers bury tasks that fail, and report their runs. Raises ValueError or ConfigError for an invalid URL or name.
    """

    def __init__(
        self,
        url: str = "nsq://127.0.0.1:4150",
        *,
        queue: str = "taskiq",
        more_queues: Sequence[str] = (),
        max_in_flight: int = _MAX_ASYNC_TASKS,
        send_timeout: float = 10.0,
        report: bool = False,
    ) -> None:
        super().__init__()
        # A failed task says nothing about the next one, so there is no backoff.
        self._endpoint = parse_url(url, max_in_flight=max_in_flight, backoff="none")
        self.queue = queue
        self.queues = tuple(dict.fromkeys((queue, *more_queues)))
        self._topics = tuple(map(topic_name, self.queues))
        self._send_timeout = send_timeout
        self._limit = DelayLimit()
        self._opened = AsyncExitStack()  # the producer and consumers of this loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: aio.Producer | None = None
        self._listening: list[Deliveries] = []
        self._reports = Reports(Reporter(self._endpoint)) if report else None
        if self._reports is not None:
            self.add_middlewares(self._reports)

    # taskiq's receiver parses messages with `broker.formatter`, and users set it.

    @property
    def formatter(self) -> TaskiqFormatter:
        """The user's formatter, which also buries messages that can't run."""
        return self._formatter

    @formatter.setter
    def formatter(self, formatter: TaskiqFormatter) -> None:
        self._formatter = BuryingFormatter(formatter, self)

    async def startup(self) -> None:
        """Open the producer. It connects on first use, so nsqd may start later."""
        await self._open_producer()
        await super().startup()

    async def shutdown(self) -> None:
        """Give back unacknowledged messages, and close all connections."""
        await super().shutdown()  # first, because handlers of this event may still send tasks
        for deliveries in self._listening:
            deliveries.close()
        if self._reports is not None:
            await asyncio.to_thread(self._reports.close)
        self._listening.clear()
        self._producer = None
        await self._opened.aclose()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task, and return when nsqd has it. Raise ValueError for invalid labels."""
        await self.publish(message, delay=delay_of(message.labels))

    async def publish(self, message: BrokerMessage, *, delay: float, key: str | None = None) -> None:
        """Publish a task that is due in `delay` seconds, with a key for cancelling it."""
        topic, headers, group = self.topic_of(message), _headers_of(message, delay), group_of(message.labels)
        producer = await self._open_producer()
        give_up = time.monotonic() + self._send_timeout
        while True:
            try:
                shortened, marked = self._limit.shorten(delay), self._limit.marked(headers, delay)
                await producer.publish(topic, message.message, delay=shortened, key=key, headers=marked, group=group)
                note_sent(message.task_id)
                return
            except PublishRejected as error:
                if not self._limit.learn(error, delay):
                    raise
            except (ConnectError, PublishUnsent):  # nsqd hasn't stored it
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(_PAUSE)

    async def cancel(self, key: str) -> CancelResult:
        """Cancel the task with this key in one of `queues`. Raises the errors of `Producer.cancel`."""
        producer = await self._open_producer()
        found = CancelResult()
        for topic in self._topics:
            found = _sum(found, await producer.cancel(topic, key))
        return found

    def topic_of(self, message: BrokerMessage) -> str:
        """Return the topic of a task."""
        return topic_name(queue_of(message.labels, self.queue))

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield the tasks of all this worker's queues. Raise ProtocolError or AuthError if none can ever arrive."""
        await self._open_producer()
        deliveries = Deliveries()
        self._listening.append(deliveries)
        consumers = [await self._open_consumer(topic) for topic in self._topics]
        pumps = [asyncio.create_task(_pump(consumer, deliveries)) for consumer in consumers]
        try:
            while True:
                delivery = await deliveries.take()
                body = TaskBody(delivery.message.body, delivery)
                # Validation would cost more than the rest, and there is nothing to validate.
                yield AckableMessage.model_construct(data=body, ack=delivery.ack)
        finally:
            # Running tasks go on, and are acknowledged over the same connections, which `shutdown` closes.
            for pump in pumps:
                pump.cancel()
            for consumer in consumers:
                consumer.stop()
            deliveries.give_back_waiting()

    async def _open_consumer(self, topic: str) -> aio.Consumer:
        it = self._endpoint
        opening = aio.open_consumer(topic, CHANNEL, nsqd=it.nsqd, lookupd=it.lookupd, config=it.config)
        return await self._opened.enter_async_context(opening)

    async def _open_producer(self) -> aio.Producer:
        if not self._is_at_home():
            # The loop of an earlier asyncio.run is gone, and its connections too.
            self._loop = asyncio.get_running_loop()
            self._opened, self._producer, self._listening = AsyncExitStack(), None, []
        if self._producer is None:
            it = self._endpoint
            opening = aio.open_producer(it.nsqd, lookupd=it.lookupd, strategy="by_group", config=it.config)
            self._producer = await self._opened.enter_async_context(opening)
        return self._producer

    def _is_at_home(self) -> bool:
        return self._loop is asyncio.get_running_loop()


async def _pump(consumer: aio.Consumer, deliveries: Deliveries) -> None:
    """Pass on due messages. Give back the others until they are due, without counting the attempt."""
    try:
        async for message in consumer:
            if not give_back_early(message, time.time()):
                deliveries.add(message)
    except Exception as error:  # any error has to end the worker, which would wait forever otherwise
        deliveries.fail(error)


def _headers_of(message: BrokerMessage, delay: float) -> dict[str, bytes]:
    eta = time.time() + delay if delay > 0 else None
    retries = retries_of(message.labels)
    return Job(library=LIBRARY, name=message.task_name, id=message.task_id, retries=retries, eta=eta).headers()


def _sum(one: CancelResult, other: CancelResult) -> CancelResult:
    return replace(
        one,
        cancelled=one.cancelled + other.cancelled,
        in_flight=one.in_flight + other.in_flight,
        buried=one.buried + other.buried,
        done=one.done + other.done,
        unknown=one.unknown + other.unknown,
    )
