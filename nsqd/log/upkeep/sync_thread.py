"""The thread that waits for the disk while a round makes things durable.

With `--ack=synced` a publisher waits for its round, and on a quick disk the flush takes no longer than the way to one of
trio's worker threads and back. So rounds have a thread of their own: a queue leads to it, and an eventfd leads back, on
which trio waits as on any other descriptor. That takes a fifth of the time (docs/decisions/0023).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Final, Self

import trio

NAME: Final = "nsqd sync"

Job = Callable[[], object]


class SyncThread:
    """Performs one job at a time: `with SyncThread() as thread: await thread.perform(job)`."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._error: BaseException | None = None
        # As trio's threads, it is a daemon: an interpreter that ends does not wait for a disk that hangs.
        self._thread = Thread(target=self._perform_jobs, name=NAME, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._jobs.put(None)
        self._thread.join()
        os.close(self._ended)

    async def perform(self, job: Job) -> None:
        """Return when the thread has run the job, and raise what the job has raised.

        Only one task may call this, and a cancellation waits for the job to end.
        """
        self._jobs.put(job)
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self._ended)
        os.eventfd_read(self._ended)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _perform_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # the task that waits for the job raises it
                self._error = error
            del job  # what a round holds need not stay in memory until the next one
            os.eventfd_write(self._ended, 1)
