"""dramatiq on each broker, with what its documentation recommends. A job is acknowledged after it has run: its default."""

from __future__ import annotations

import math
import time
from typing import Final

import dramatiq
from dramatiq import Broker, Middleware, Worker

from bench.jobs.setup import Notes, Setup, setup_of_environment

_SHORTEST_HEARTBEAT: Final = 15.0  # seconds


def nsq_broker(setup: Setup) -> Broker:
    from nsqjobs.dramatiq import NsqBroker

    return NsqBroker(setup.url)


def redis_broker(setup: Setup) -> Broker:
    from dramatiq.brokers.redis import RedisBroker

    # Jobs of a worker without a heartbeat are given back by one command in a thousand. An idle worker fetches every few
    # seconds, so a shorter time would take living workers for dead ones.
    return RedisBroker(
        url=setup.url,
        heartbeat_timeout=round(1000 * max(_SHORTEST_HEARTBEAT, setup.scaled(60))),
        maintenance_chance=min(1_000_000, round(1000 * setup.speed)),
    )


def rabbitmq_broker(setup: Setup) -> Broker:
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    return RabbitmqBroker(url=setup.url, confirm_delivery=True)


_OF_BROKER: Final = {"nsq": nsq_broker, "redis": redis_broker, "rabbitmq": rabbitmq_broker}

setup: Final = setup_of_environment()
notes: Final = Notes(setup)
broker: Final = _OF_BROKER[setup.broker](setup)
dramatiq.set_broker(broker)


class NotesReady(Middleware):
    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        notes.ready()


broker.add_middleware(NotesReady())


@dramatiq.actor(actor_name="jobs.note", queue_name="jobs")
def note(number: int, due: float) -> None:
    notes.ran(number, due)


@dramatiq.actor(actor_name="jobs.nothing", queue_name="jobs")
def nothing() -> None:
    pass


def publish(number: int, due: float) -> None:
    """Publish a job that is due then, or raise. It has the same id whenever it is published."""
    message = note.message(number, due).copy(message_id=f"job-{number}")
    # Rounded up, as dramatiq counts in milliseconds and the job should not be due before it is.
    broker.enqueue(message, delay=max(0, math.ceil((due - time.time()) * 1000) + 1))


def publish_many(count: int) -> None:
    """Publish jobs that do nothing, one after the other."""
    for _ in range(count):
        nothing.send()
