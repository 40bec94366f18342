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
    # What else has to run for jobs with an ETA: it is killed and started again as workers are.
    scheduler: Callable[[Setup], Command | None] = lambda setup: None


def _celery_worker(setup: Setup, number: int) -> Command:
    return [
        *(sys.executable, "-m", "celery", "-A", "bench.jobs.celery_app", "worker", "--loglevel=WARNING"),
        *(f"--concurrency={setup.concurrency}", f"--hostname=worker{number}@%h"),
        # Not needed for jobs, and a worker that is killed every few seconds should be back soon.
        *("--without-gossip", "--without-mingle"),
    ]


LIBRARIES: Final[Mapping[str, Library]] = {
    "celery": Library(
        "bench.jobs.celery_app",
        ("nsq", "redis", "redis-long", "rabbitmq", "rabbitmq-classic"),
        ("celery", "kombu"),
        _celery_worker,
    ),
}
