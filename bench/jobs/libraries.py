"""The job libraries: the brokers each can use, and the processes that work its jobs off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.jobs.setup import Setup

Command = list[str]


@dataclass(frozen=True, slots=True)
class Library:
    app: str  # a module with `publish` and `publish_many`
    brokers: tuple[str, ...]
    packages: tuple[str, ...]  # whose versions matter
    worker: Callable[[Setup, int], Command]
    usual: int  # jobs at a time in one worker, by the library's default on two cores
    # What else has to run for jobs with an ETA: it is killed and started again as workers are.
    scheduler: Callable[[Setup], Command | None] = lambda setup: None
    other: str = "redis"  # the broker that `python -m bench jobs` compares nsqd with
    needs_database: bool = False


def _celery_worker(setup: Setup, number: int) -> Command:
    return [
        *(sys.executable, "-m", "celery", "-A", "bench.jobs.celery_app", "worker", "--loglevel=WARNING"),
        *(f"--concurrency={setup.concurrency}", f"--hostname=worker{number}@%h"),
        # Not needed for jobs, and a worker that is killed every few seconds should be back soon.
        *("--without-gossip", "--without-mingle"),
    ]


def _taskiq_worker(setup: Setup, number: int) -> Command:
    return [
        *(sys.executable, "-m", "taskiq", "worker", "bench.jobs.taskiq_app:broker", "--workers=1"),
        *(f"--max-async-tasks={setup.concurrency}", "--log-level=WARNING"),
    ]


def _taskiq_scheduler(setup: Setup) -> Command | None:
    if setup.broker != "redis":
        return None
    return [
        *(sys.executable, "-m", "taskiq", "scheduler", "bench.jobs.taskiq_app:scheduler", "--log-level=WARNING"),
        # It asks for schedules once a minute.
        f"--update-interval={max(1, round(setup.scaled(60)))}",
    ]


def _dramatiq_worker(setup: Setup, number: int) -> Command:
    return [
        *(sys.executable, "-m", "dramatiq", "bench.jobs.dramatiq_app", "--processes=1"),
        f"--threads={setup.concurrency}",
    ]


def _django_worker(setup: Setup, number: int) -> Command:
    command = [sys.executable, "-m", "django"]
    settings = "--settings=bench.jobs.django_settings"
    if setup.broker == "nsq":
        return [*command, "nsq_worker", settings, f"--concurrency={setup.concurrency}"]
    return [*command, "db_worker", settings, "--verbosity=0"]  # one task at a time: it knows nothing else


LIBRARIES: Final[Mapping[str, Library]] = {
    "celery": Library(
        "bench.jobs.celery_app",
        ("nsq", "redis", "redis-long", "rabbitmq", "rabbitmq-classic"),
        ("celery", "kombu"),
        _celery_worker,
        2,
    ),
    "taskiq": Library(
        "bench.jobs.taskiq_app", ("nsq", "redis", "rabbitmq"), ("taskiq",), _taskiq_worker, 100, _taskiq_scheduler
    ),
    "dramatiq": Library("bench.jobs.dramatiq_app", ("nsq", "redis", "rabbitmq"), ("dramatiq",), _dramatiq_worker, 8),
}

# `python -m bench jobs` measures these. Django's tasks are not among those above, whose jobs with an ETA are counted while
# everything is killed: django-tasks-db never runs again what a killed worker had.
RATED: Final[Mapping[str, Library]] = {
    **LIBRARIES,
    "django": Library(
        "bench.jobs.django_app",
        ("nsq", "postgres"),
        ("django", "django-tasks-db"),
        _django_worker,
        4,
        other="postgres",
        needs_database=True,
    ),
}
