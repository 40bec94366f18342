"""taskiq on each broker, with what the documentation of its brokers recommends for jobs that must not be lost.

A job is acknowledged after it has run: taskiq's default. Where the broker knows no delay, an ETA is a schedule by time
for taskiq's scheduler, a process of its own: so it is on Redis.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from taskiq import AsyncBroker, TaskiqEvents, TaskiqScheduler, TaskiqState

from bench.jobs.setup import Notes, Setup, setup_of_environment

if TYPE_CHECKING:
    from taskiq_redis import ListRedisScheduleSource

_IDLE: Final = 600.0  # seconds until another worker takes an unacknowledged job: the default of RedisStreamBroker
_LOCK: Final = 10.0  # "useful when the worker crashes or gets killed"


def nsq_broker(setup: Setup) -> AsyncBroker:
    from nsqjobs.taskiq import NsqBroker

    broker: AsyncBroker = NsqBroker(setup.url, queue="jobs", max_in_flight=setup.concurrency)
    return broker


def redis_broker(setup: Setup) -> AsyncBroker:
    """Return the one of taskiq-redis' brokers that acknowledges, which https://github.com/taskiq-python/taskiq-redis says."""
    from taskiq_redis import RedisStreamBroker

    broker: AsyncBroker = RedisStreamBroker(
        setup.url,
        idle_timeout=int(1000 * setup.scaled(_IDLE)),
        unacknowledged_lock_timeout=_LOCK,
        xread_count=setup.concurrency,
    )
    return broker


def rabbitmq_broker(setup: Setup) -> AsyncBroker:
    """Return a broker with quorum queues and a queue for delays: https://github.com/taskiq-python/taskiq-aio-pika."""
    from taskiq_aio_pika import AioPikaBroker, Queue

    broker: AsyncBroker = AioPikaBroker(setup.url, qos=setup.concurrency, delay_queue=Queue(name="taskiq.delay"))
    return broker


_OF_BROKER: Final = {"nsq": nsq_broker, "redis": redis_broker, "rabbitmq": rabbitmq_broker}

setup: Final = setup_of_environment()
notes: Final = Notes(setup)
broker: Final = _OF_BROKER[setup.broker](setup)


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def note_ready(_: TaskiqState) -> None:
    notes.ready()


@broker.task("jobs.note")
async def note(number: int, due: float) -> None:
    notes.ran(number, due)


@broker.task("jobs.nothing")
async def nothing() -> None:
    pass


def _schedules() -> ListRedisScheduleSource | None:
    if setup.broker != "redis":
        return None
    from taskiq_redis import ListRedisScheduleSource

    return ListRedisScheduleSource(setup.url)


schedules: Final = _schedules()
scheduler: Final = TaskiqScheduler(broker, [schedules] if schedules is not None else [])

# A program that is not asyncio's own: each call runs the loop for as long as it takes.
_loop: Final = asyncio.new_event_loop()
_started: list[bool] = []


def publish(number: int, due: float) -> None:
    """Publish a job that is due then, or raise."""
    _loop.run_until_complete(_publish(number, due))


def publish_many(count: int) -> None:
    """Publish jobs that do nothing, one after the other."""
    _loop.run_until_complete(_publish_many(count))


async def _publish(number: int, due: float) -> None:
    await _start()
    kicker = note.kicker().with_task_id(f"job-{number}")
    if schedules is not None:
        schedule_id = f"schedule-{number}"  # the same, if it is published again
        await kicker.with_schedule_id(schedule_id).schedule_by_time(
            schedules, datetime.fromtimestamp(due, UTC), number, due
        )
    else:
        await kicker.with_labels(delay=max(0.0, due - time.time())).kiq(number, due)


async def _publish_many(count: int) -> None:
    await _start()
    for _ in range(count):
        await nothing.kiq()


async def _start() -> None:
    if not _started:
        await broker.startup()
        _started.append(True)
