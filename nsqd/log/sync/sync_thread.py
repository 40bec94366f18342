"""The thread that waits for the disk, and the task beside it. When to sync is decided in syncer.py.

With `--ack=synced` a publisher waits for its sync. On a quick disk a flush takes less time than the way through tasks
of trio, which first have to get their turn, to a worker thread and back. So there is a short way (docs/decisions/0024):

    end of a turn ──begin()──> queue ──> thread: open, fdatasync, close ──> eventfd ──end()──> the next turn: OK

The turn that has written the messages begins the sync, and the poller watches the eventfd beside its sockets. The task
goes the same way. It begins the syncs that no client waits for, and ends those that the poller has not ended. So
whichever comes second finds nothing to do.
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
        self.doorbell = make_doorbell()  # rings when a sync was performed
        self._files = files
        self._syncs: SimpleQueue[Sync | None] = SimpleQueue()
        # As trio's threads, it is a daemon: an interpreter that ends does not wait for a disk that hangs.
        self._worker = Thread(target=self._perform_syncs, name=NAME, daemon=True)

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        """End the thread, which has nothing to do any more."""
        self._syncs.put(None)
        self._worker.join()
        self.doorbell.close()

    def perform(self, sync: Sync) -> None:
        """Have the thread perform the sync. The doorbell rings when that is done."""
        self._syncs.put(sync)

    def _perform_syncs(self) -> None:
        while (sync := self._syncs.get()) is not None:
            try:
                sync.perform(self._files)
            except BaseException as error:  # a bug, which `Syncer.end` raises on the loop
                sync.bug = error
            sync.is_performed = True
            del sync  # what it holds need not stay in memory until the next one
            self.doorbell.ring()

    # The task

    async def run(self, syncer: Syncer, wakeups: Wakeups, *, on_settled: Callable[[], object]) -> None:
        """Sync until cancelled. `on_settled`: publishers that waited have their answer."""
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
            # While a sync runs, what it has taken is recorded nowhere else, so a cancellation waits for the sync to end.
            # A deadline would not help: a thread that waits for the disk could not be left behind either.
            syncer.stop()
            with trio.CancelScope(shield=True):
                await self._wait_for_end(syncer, on_settled)
            self.close()

    async def _wait_for_end(self, syncer: Syncer, on_settled: Callable[[], object]) -> None:
        """Return when no sync is running. The poller may end one first, and a turn may begin the next one."""
        while syncer.is_busy:
            await trio.lowlevel.wait_readable(self.doorbell.descriptor)
            self.doorbell.answer()
            if syncer.end():
                on_settled()


async def _pause(syncer: Syncer, wakeups: Wakeups) -> None:
    """Leave the disk to the writers for as long as the syncer says, which may change with each hurry."""
    began = trio.current_time()
    while (left := began + syncer.pause - trio.current_time()) > 0:
        with trio.move_on_after(left):
            await wakeups.hurry.wait()


class Doorbell(Protocol):
    """A descriptor that a thread makes readable, so that a loop which waits for it wakes up: an eventfd, or a pipe."""

    descriptor: int  # readable from `ring` until `answer`

    def ring(self) -> object:
        """Make the descriptor readable. Any thread may call this."""

    def answer(self) -> object:
        """Make it unreadable until the next `ring`. Only for one who has found it readable."""

    def close(self) -> None: ...


class EventfdDoorbell:
    """The quick one: one descriptor, and the kernel counts."""

    __slots__ = ("answer", "descriptor", "ring")

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.ring = partial(os.eventfd_write, self.descriptor, 1)
        self.answer = partial(os.eventfd_read, self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class PipeDoorbell:
    """The one that every Unix has."""

    def __init__(self) -> None:
        self.descriptor, self._end = os.pipe()
        for end in (self.descriptor, self._end):
            os.set_blocking(end, False)

    def ring(self) -> None:
        try:
            os.write(self._end, b"\0")
        except BlockingIOError:  # the pipe is full, so it has rung often enough
            pass

    def answer(self) -> None:
        os.read(self.descriptor, _MOST_AT_ONCE)

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._end)


def make_doorbell() -> Doorbell:
    return EventfdDoorbell() if hasattr(os, "eventfd") else PipeDoorbell()
