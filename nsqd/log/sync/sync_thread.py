"""Runs syncs in a thread, and the task that begins and ends them. syncer.py decides when to sync.

With `--ack=synced` a publisher waits for its sync. On a fast disk, a flush takes less time than going through trio's
tasks to a worker thread and back, because each task has to wait until it's scheduled. So there's a shortcut
(docs/decisions/0024):

    end of a turn ──begin()──> queue ──> thread: open, fdatasync, close ──> eventfd ──end()──> the next turn: OK

The turn that wrote the messages begins the sync, and the poller watches the eventfd along with its sockets. The task
begins the syncs that no client is waiting for, and ends the ones the poller hasn't ended. Both call the same `begin`
and `end`, and it doesn't matter which is first, because the second call does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, Protocol

import trio

if TYPE_CHECKING:
    from nsqd.log.files import Files
    from nsqd.log.sync.sync import Sync
    from nsqd.log.sync.syncer import Syncer
    from nsqd.log.wakeups import Wakeups

NAME: Final = "nsqd sync"
_MOST_AT_ONCE: Final = 4096


class SyncThread:
    """Performs syncs, one at a time."""

    def __init__(self, files: Files) -> None:
        self.doorbell = make_doorbell()  # rings after each performed sync
        self._files = files
        self._syncs: SimpleQueue[Sync | None] = SimpleQueue()
        # A daemon thread, like trio's own, so that the interpreter can exit even if the disk hangs.
        self._worker = Thread(target=self._perform_syncs, name=NAME, daemon=True)

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        """End the thread. Call this only when no sync is running."""
        self._syncs.put(None)
        self._worker.join()
        self.doorbell.close()

    def perform(self, sync: Sync) -> None:
        """Have the thread perform the sync. The doorbell rings when it's done."""
        self._syncs.put(sync)

    def _perform_syncs(self) -> None:
        while (sync := self._syncs.get()) is not None:
            try:
                sync.perform(self._files)
            except BaseException as error:  # a bug of ours; `Syncer.end` raises it on the loop
                sync.bug = error
            sync.is_performed = True
            del sync  # or its data would stay in memory until the next sync
            self.doorbell.ring()

    # The task

    async def run(self, syncer: Syncer, wakeups: Wakeups, *, on_settled: Callable[[], object]) -> None:
        """Sync until cancelled. Call `on_settled` when waiting publishers have been answered."""
        self.start()
        syncer.start(self)
        try:
            while True:
                if not syncer.is_busy:
                    await wakeups.sync.wait()
                    wakeups.hurry.clear()
                    syncer.begin()
                await self._wait_for_end(syncer, on_settled)
                await _pause(syncer, wakeups)
        finally:
            # Finish a running sync even if we're cancelled, because only the sync itself knows which files it has
            # taken. A deadline wouldn't help, because we can't abandon a thread that's waiting for the disk.
            syncer.stop()
            with trio.CancelScope(shield=True):
                await self._wait_for_end(syncer, on_settled)
            self.close()

    async def _wait_for_end(self, syncer: Syncer, on_settled: Callable[[], object]) -> None:
        """Return when no sync is running. In the meantime the poller may end one, and a turn may begin another."""
        while syncer.is_busy:
            await trio.lowlevel.wait_readable(self.doorbell.descriptor)
            self.doorbell.answer()
            if syncer.end():
                on_settled()


async def _pause(syncer: Syncer, wakeups: Wakeups) -> None:
    """Sleep for `syncer.pause`, to leave the disk to the writers. `wakeups.hurry` may shorten the pause."""
    began = trio.current_time()
    while (left := began + syncer.pause - trio.current_time()) > 0:
        with trio.move_on_after(left):
            await wakeups.hurry.wait()


class Doorbell(Protocol):
    """A descriptor that a thread makes readable to wake up the loop: an eventfd or a pipe."""

    descriptor: int  # readable after `ring`, until `answer`

    def ring(self) -> object:
        """Make the descriptor readable. You may call this from any thread."""

    def answer(self) -> object:
        """Clear the descriptor until the next `ring`. Call this only if it's readable now."""

    def close(self) -> None: ...


class EventfdDoorbell:
    """An eventfd: fast, with a single descriptor. Linux only."""

    __slots__ = ("answer", "descriptor", "ring")

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.ring = partial(os.eventfd_write, self.descriptor, 1)
        self.answer = partial(os.eventfd_read, self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class PipeDoorbell:
    """A pipe, for systems without eventfd."""

    def __init__(self) -> None:
        self.descriptor, self._end = os.pipe()
        for end in (self.descriptor, self._end):
            os.set_blocking(end, False)

    def ring(self) -> None:
        try:
            os.write(self._end, b"\0")
        except BlockingIOError:  # the pipe is full, so it's readable anyway
            pass

    def answer(self) -> None:
        os.read(self.descriptor, _MOST_AT_ONCE)

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._end)


def make_doorbell() -> Doorbell:
    return EventfdDoorbell() if hasattr(os, "eventfd") else PipeDoorbell()
