"""The supervisor: starts the workers, restarts any that die, and acts on signals.

    SIGTERM, SIGINT, SIGHUP   stop all workers at the same time
    SIGUSR1                   drain all workers at the same time, and exit when all have drained; a worker that dies
                              meanwhile is restarted and drained; a rolling restart is cancelled
    SIGUSR2                   rolling restart: drain and restart the workers one by one

If the supervisor itself is killed, its workers shut down cleanly: see link.py.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import TYPE_CHECKING, Final

import trio

from nsqcommon.daemon import first_of, wait_for_signal
from nsqcommon.options import seconds
from nsqcommon.startup import StartupError
from nsqcommon.systemd import READY, STOPPING, notify
from nsqd.workers.folders import owned_folders
from nsqd.workers.settings import check_addresses
from nsqd.workers.worker_process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nsqd.options import Options

log = logging.getLogger(__name__)

_SLACK: Final = 10.0  # seconds that a drain may exceed its own limits
_LAST_SYNC: Final = 30.0  # seconds that a stop may exceed its own limit; our systemd unit allows as much
_SETTLE: Final = 2.0  # seconds for clients to reconnect to a restarted worker before the next one drains


async def supervise(options: Options, *, wait_for_shutdown: Callable[[], Awaitable[object]] = wait_for_signal) -> None:
    """Run the workers until `wait_for_shutdown` returns or all have drained. Raises StartupError if one can't start."""
    check_addresses(options)
    with owned_folders(options.data_path, options.workers):
        log.info("%d workers on %s", options.workers, options.data_path or ".")
        await _run(_Workers(options), wait_for_shutdown)
    log.info("NSQ: bye")


async def _run(workers: _Workers, wait_for_shutdown: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as lives:
        for worker in workers.all:
            lives.start_soon(worker.run)
        async with trio.open_nursery() as services:
            await services.start(_handle_signals, workers)
            services.start_soon(_announce_ready, workers)
            await first_of(wait_for_shutdown, workers.over.wait)
            notify(STOPPING)
            services.cancel_scope.cancel()
        # From here on, the process ignores SIGUSR1 and SIGUSR2 (see nsqcommon/daemon.py).
        workers.stop()
    workers.raise_failure()


class _Workers:
    """All workers of this machine."""

    def __init__(self, options: Options) -> None:
        self.over = trio.Event()  # all workers are at rest, or one can't start
        self.all = [
            WorkerProcess(it, command_of(it, workers=options.workers), self._check_if_over, stands_by=options.standby)
            for it in range(options.workers)
        ]
        self._drain_limit = seconds(options.drain_deadline + options.drain_stay + options.drain_timeout) + _SLACK
        self._stop_limit = seconds(options.drain_timeout) + _LAST_SYNC
        self._renewing: trio.CancelScope | None = None  # of the current rolling restart

    def _check_if_over(self) -> None:
        is_idle = self._renewing is None and all(it.is_resting for it in self.all)
        if is_idle or any(it.failure for it in self.all):
            self.over.set()

    def stop(self) -> None:
        for worker in self.all:
            worker.stop()

    def drain(self) -> None:
        """Drain all workers. This cancels a rolling restart, which would start them again."""
        log.info("draining all workers")
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        for worker in self.all:
            worker.drain(self._drain_limit)
        self._check_if_over()

    async def wait_until_ready(self) -> None:
        for worker in self.all:
            await worker.ready.wait()

    async def renew(self) -> None:
        """Restart the workers one by one. If a rolling restart is already running, only start workers that are down."""
        if self._renewing is not None:
            log.info("a rolling restart is already running")
            for worker in self.all:
                worker.wake()
            return
        scope = self._renewing = trio.CancelScope()
        with scope:
            await self._renew_one_by_one()
        if self._renewing is scope:
            self._renewing = None
            self._check_if_over()

    async def _renew_one_by_one(self) -> None:
        for worker in self.all:
            if worker is not self.all[0]:
                await trio.sleep(_SETTLE)
            log.info("restarting %s", worker.name)
            await worker.renew(self._drain_limit, self._stop_limit)
        log.info("restarted all workers")

    def raise_failure(self) -> None:
        """Raise StartupError if a worker couldn't start or didn't stop cleanly."""
        for worker in self.all:
            if worker.failure:
                raise StartupError(worker.failure)


async def _announce_ready(workers: _Workers) -> None:
    await workers.wait_until_ready()
    log.info("all workers are ready")
    notify(READY)


async def _handle_signals(workers: _Workers, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGUSR1, signal.SIGUSR2) as arrivals:
        async with trio.open_nursery() as nursery:
            task_status.started()
            async for number in arrivals:
                if number == signal.SIGUSR1:
                    workers.drain()
                else:
                    nursery.start_soon(workers.renew)


def command_of(
    number: int, *, workers: int, argv: Sequence[str] = sys.argv, original: Sequence[str] = sys.orig_argv
) -> list[str]:
    """Return the command that starts a worker: this process's command, with two more flags in front of its own.

    Anything else before the flags is kept, such as `-m nsqd`. The second new flag is --workers, because the number in
    the --config file may have changed by the time the worker starts.
    """
    given = list(argv[1:])
    start = list(original[1 : len(original) - len(given)])
    return [sys.executable, *start, f"--worker={number}", f"--workers={workers}", *given]
