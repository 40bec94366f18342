"""Celery on each broker, with what Celery's documentation recommends for jobs that must not be lost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from celery import Celery
from celery.signals import worker_ready

from bench.jobs.setup import Notes, Setup, setup_of_environment

HOUR: Final = 3600.0
_MUTEX: Final = 300.0  # kombu's default
LONGEST_ETA: Final = 7 * HOUR  # more than any run stands for

# https://docs.celeryq.dev/en/stable/userguide/optimizing.html, the same on all brokers. With worker_prefetch_multiplier
# as the setup says: 1 is recommended together with late acknowledgement.
SETTINGS: Final[dict[str, Any]] = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_ignore_result": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "task_publish_retry_policy": {"max_retries": None, "interval_start": 0.1, "interval_max": 0.5},
}


def redis_settings(setup: Setup) -> dict[str, Any]:
    """Return the default visibility timeout, or one that is longer than any ETA.

    https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html names both.
    """
    from kombu.transport.redis import Channel  # wants redis, which is of the extra `bench-jobs`

    # A worker that dies while it gives jobs back keeps others from it for this long. There is no option for it.
    Channel.unacked_mutex_expire = max(1, round(setup.scaled(_MUTEX)))
    timeout = HOUR if setup.broker == "redis" else LONGEST_ETA
    return {
        "broker_transport_options": {
            "visibility_timeout": setup.scaled(timeout),
            "unacked_restore_interval": setup.scaled(10),
        }
    }


def rabbitmq_settings(setup: Setup) -> dict[str, Any]:
    """Return what makes a publish to a durable queue wait until RabbitMQ has it."""
    return {"broker_transport_options": {"confirm_publish": True}}


def quorum_settings(setup: Setup) -> dict[str, Any]:
    """Return the settings of quorum queues and native delayed delivery.

    https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/rabbitmq.html, "Using Quorum Queues".
    """
    return {
        **rabbitmq_settings(setup),
        "task_default_queue_type": "quorum",
        "task_default_exchange": "jobs",
        "task_default_exchange_type": "topic",
        "worker_detect_quorum_queues": True,
        "broker_native_delayed_delivery_queue_type": "quorum",
    }


def nsq_settings(setup: Setup) -> dict[str, Any]:
    return {}


_OF_BROKER: Final = {
    "nsq": nsq_settings,
    "redis": redis_settings,
    "redis-long": redis_settings,
    "rabbitmq": quorum_settings,
    "rabbitmq-classic": rabbitmq_settings,
}

setup: Final = setup_of_environment()
notes: Final = Notes(setup)
app: Final = Celery("jobs", broker=setup.url)
app.conf.update(SETTINGS, worker_prefetch_multiplier=setup.ahead)
app.conf.update(_OF_BROKER[setup.broker](setup))


@worker_ready.connect
def note_ready(**_: object) -> None:
    notes.ready()


@app.task(name="jobs.note")
def note(number: int, due: float) -> None:
    notes.ran(number, due)


@app.task(name="jobs.nothing")
def nothing() -> None:
    pass


def publish(number: int, due: float) -> None:
    """Publish a job that is due then, or raise. It has the same id whenever it is published."""
    note.apply_async((number, due), eta=datetime.fromtimestamp(due, UTC), task_id=f"job-{number}")


def publish_many(count: int) -> None:
    """Publish jobs that do nothing, one after the other."""
    for _ in range(count):
        nothing.apply_async()
