"""A worker: threads that run tasks until `stop`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from django.db import connections
from django.utils.crypto import get_random_string

from nsqclient import NSQError
from nsqjobs.django.queue import Queue
from nsqjobs.django.running import handle

if TYPE_CHECKING:
    from nsqjobs.django.backend import NsqBackend
    from nsqjobs.held import HeldMessage

log = logging.getLogger(__name__)

_LOOK: Final = 0.5  # seconds between checks for `stop` in an idle thread
_LENGTH_OF_ID: Final = 32


class Worker:
    """Runs the tasks of some queues, `concurrency` of each at a time.

    Each queue has its own threads, so slow tasks in one queue don't hold up the others.
    """

    def __init__(self, backend: NsqBackend, names: Sequence[str], *, concurrency: int) -> None:
        self.id = get_random_string(_LENGTH_OF_ID)
        self.failure: NSQError | None = None  # why the worker has stopped by itself
        self._backend = backend
        self._names = names
        self._concurrency = concurrency
        self._threads: list[Thread] = []
        self._queues: list[Queue] = []
        self._stop = Event()

    def run(self, *, drain_timeout: float) -> None:
        """Run tasks until `stop` is called. Then running tasks have `drain_timeout` seconds to end."""
        for name in self._names:
            self._start(name)
        log.info("worker %s waits for tasks of %s", self.id, ", ".join(self._names))
        self._stop.wait()
        log.info("worker %s stops", self.id)
        for queue in self._queues:
            queue.close()
        until = time.monotonic() + drain_timeout
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in self._threads):
            log.warning("worker %s gives back tasks still running after %g s", self.id, drain_timeout)
        if self._backend.reporter is not None:
            self._backend.reporter.close()
        self._backend.link.close()

    def stop(self) -> None:
        """Start no further task. You can call it in a signal handler."""
        self._stop.set()

    def _start(self, name: str) -> None:
        backend = self._backend
        queue = Queue(backend.link, name, concurrency=self._concurrency, has_priorities=backend.supports_priority)
        self._queues.append(queue)
        for number in range(self._concurrency):
            thread = Thread(target=self._work, args=(queue,), name=f"{name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self, queue: Queue) -> None:
        try:
            self._run_tasks_of(queue)
        finally:
            connections.close_all()

    def _run_tasks_of(self, queue: Queue) -> None:
        while not self._stop.is_set():
            try:
                taken = queue.take(_LOOK)
            except NSQError as error:
                self.failure = error
                self.stop()
                return
            if taken is not None:
                self._run_task(taken.held)
                queue.done(taken)

    def _run_task(self, held: HeldMessage) -> None:
        if self._stop.is_set():
            held.give_back()
        else:
            handle(held, self._backend, self.id)
