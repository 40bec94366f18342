"""One worker from the supervisor's point of view: a process to start, watch, and restart when it dies."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import closing
from math import inf
from typing import TYPE_CHECKING, Final

import trio

from nsqd.workers.link import SupervisorEnd, environment_of_worker
from nsqd.workers.plan import name_of
from nsqd.workers.restarts import Ending, Next, Pauses, next_after

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)

_CANNOT_START: Final = 127  # as a shell reports a command that it can't run


class WorkerProcess:
    """Keeps one worker running. Calls `on_change` when the worker comes to rest or can't start."""

    def __init__(
        self, number: int, command: Sequence[str], on_change: Callable[[], None], *, stands_by: bool = False
    ) -> None:
        self.name = name_of(number)
        self.ready = trio.Event()  # replaced when the process ends
        self.is_resting = False
        self.failure = ""  # why the worker can't start, or didn't stop cleanly
        self._command = command
        self._on_change = on_change
        self._stands_by = stands_by
        self._pauses = Pauses()
        self._has_been_ready = False
        self._is_stopping = False
        self._is_renewed = False  # we have asked the process to stop in order to restart it
        self._drains_when_ready = False
        self._drain_limit = 0.0
        self._drain_ends = -inf  # the deadline of the drain that we have started
        self._process: trio.Process | None = None
        self._ended = trio.Event()  # replaced when the next process starts
        self._poke = trio.Event()  # ends a pause or a rest

    async def run(self) -> None:
        """Keep the worker running until `stop`, or until it fails to start."""
        while not self._is_stopping and not self.failure:
            ending = await self._live()
            if not self._is_stopping:
                await self._wait_for_next_start(ending)
            elif not ending.is_orderly and self._has_been_ready:
                self._fail(ending)

    # Requests

    def stop(self) -> None:
        """Stop the worker for good."""
        self._is_stopping = True
        self.send(signal.SIGTERM)
        self.wake()

    def wake(self) -> None:
        """Start the worker now if it is pausing or at rest."""
        self.is_resting = False
        self._poke.set()

    def send(self, number: signal.Signals) -> None:
        """Signal the process, if there is one."""
        if self._process is not None:
            self._process.send_signal(number)

    def drain(self, limit: float) -> None:
        """Drain the process once it is ready. If it dies during the next `limit` seconds, drain its successor too."""
        if self.is_resting:
            return
        self._is_renewed = False
        self._drain_limit = limit
        self._drains_when_ready = True
        if self.ready.is_set():
            self._begin_drain()

    def _begin_drain(self) -> None:
        self._drains_when_ready = False
        self._drain_ends = trio.current_time() + self._drain_limit
        self.send(signal.SIGUSR1)

    async def renew(self, drain_limit: float, stop_limit: float) -> None:
        """Drain the process, start a new one, and return once the new one is ready.

        If the drain takes longer than `drain_limit` seconds, stop the process. If the stop takes longer than
        `stop_limit` seconds, kill the process.
        """
        was_resting = self.is_resting
        self._forget_drain()
        self.wake()
        await self.ready.wait()
        if was_resting:
            return
        self._is_renewed = True
        ended = self._ended  # each process has its own event
        self.send(signal.SIGUSR1)
        if not await _wait_at_most(ended, drain_limit):
            log.warning("%s has not drained in %g s, stopping it", self.name, drain_limit)
            self.send(signal.SIGTERM)
            if not await _wait_at_most(ended, stop_limit):
                log.error("%s has not stopped in %g s, killing it", self.name, stop_limit)
                self.send(signal.SIGKILL)
        await ended.wait()
        await self.ready.wait()

    def _forget_drain(self) -> None:
        self._drains_when_ready = False
        self._drain_ends = -inf

    # The process

    async def _live(self) -> Ending:
        """Run one process until it exits."""
        began = trio.current_time()
        self._ended = trio.Event()
        self._is_renewed = False
        try:
            with closing(SupervisorEnd()) as link:
                status = await self._run_process(link)
        except OSError as error:
            log.error("failed to start %s: %s", self.name, error)
            status = _CANNOT_START
        finally:
            self._process = None
            if self.ready.is_set():
                self.ready = trio.Event()
            self._ended.set()
        return Ending(status=status, lived=trio.current_time() - began)

    async def _run_process(self, link: SupervisorEnd) -> int:
        process = await trio.lowlevel.open_process(
            self._command,
            stdin=link.workers.fileno(),
            env=environment_of_worker(os.environ, starts_again=self._has_been_ready),
        )
        link.workers.close()
        self._process = process
        log.info("%s is process %d", self.name, process.pid)
        if self._is_stopping:
            self.send(signal.SIGTERM)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_ready, link)
            status = await process.wait()
            nursery.cancel_scope.cancel()
        return status

    async def _note_ready(self, link: SupervisorEnd) -> None:
        if await link.wait_until_ready():
            log.info("%s is ready", self.name)
            self._has_been_ready = True
            self.ready.set()
            if self._drains_when_ready:
                self._begin_drain()

    # After an exit

    async def _wait_for_next_start(self, ending: Ending) -> None:
        match next_after(
            ending, is_renewed=self._is_renewed, has_been_ready=self._has_been_ready, stands_by=self._stands_by
        ):
            case Next.GIVE_UP:
                self._fail(ending)
            case Next.REST:
                await self._rest(ending)
            case Next.START if self._is_renewed:
                log.info("%s %s, restarting it", self.name, ending)
            case Next.START:
                await self._pause(ending)

    def _fail(self, ending: Ending) -> None:
        why = "; see its own lines in this log" if ending.status > 0 else ""
        self.failure = f"{self.name} {ending}{why}"
        self._on_change()

    async def _rest(self, ending: Ending) -> None:
        why = "has drained or was stopped" if ending.status == 0 else "was taken over by another process"
        log.info("%s %s, leaving it down; SIGUSR2 restarts the workers", self.name, why)
        self._forget_drain()
        self._poke = trio.Event()
        self.is_resting = True
        self._on_change()
        await self._poke.wait()

    async def _pause(self, ending: Ending) -> None:
        pause = self._pauses.pause_after(ending)
        log.error("%s %s, restarting it %s", self.name, ending, f"in {pause:g} s" if pause else "now")
        if trio.current_time() < self._drain_ends:  # it has died during its drain
            self._drains_when_ready = True
        self._poke = trio.Event()
        await _wait_at_most(self._poke, pause)


async def _wait_at_most(event: trio.Event, limit: float) -> bool:
    """Wait for an event for at most `limit` seconds. Return whether it is set."""
    with trio.move_on_after(limit):
        await event.wait()
    return event.is_set()
