"""`manage.py nsq_worker`."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import BaseCommand, CommandError

from nsqjobs.django import NsqBackend
from nsqjobs.django.api import task_backends
from nsqjobs.django.worker import Worker

if TYPE_CHECKING:
    from types import FrameType

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Command(BaseCommand):
    help = "Run tasks from nsqd. After SIGTERM or SIGINT, running tasks may end; a second signal stops at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="a name in TASKS (%(default)s)")
        parser.add_argument(
            "--queue", action="append", dest="queues", help="a queue; repeatable (all queues of the backend)"
        )
        parser.add_argument("--concurrency", type=int, default=4, help="parallel tasks per queue (%(default)s)")
        parser.add_argument(
            "--drain-timeout",
            type=float,
            default=60.0,
            help="grace period for running tasks after a signal, in seconds; then they are given back (%(default)g)",
        )

    def handle(self, **options: Any) -> None:
        if options["concurrency"] < 1:
            raise CommandError("--concurrency must be at least 1")
        backend = _backend(options["backend"])
        worker = Worker(backend, _queues(backend, options["queues"]), concurrency=options["concurrency"])
        for number in _SIGNALS:
            signal.signal(number, partial(_stop, worker))
        worker.run(drain_timeout=options["drain_timeout"])
        if worker.failure is not None:
            raise CommandError(str(worker.failure))


def _backend(alias: str) -> NsqBackend:
    backend = task_backends[alias]
    if not isinstance(backend, NsqBackend):
        raise CommandError(f"TASKS[{alias!r}] is not an nsqjobs.django.NsqBackend")
    return backend


def _queues(backend: NsqBackend, chosen: Sequence[str] | None) -> Sequence[str]:
    queues = chosen or sorted(backend.queues)
    if not queues:
        raise CommandError("QUEUES is empty, which allows every queue: name some with --queue")
    if backend.queues and (unknown := [it for it in queues if it not in backend.queues]):
        raise CommandError(f"not in QUEUES: {', '.join(unknown)}")
    return queues


def _stop(worker: Worker, number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    worker.stop()
