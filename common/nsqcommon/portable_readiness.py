"""Readiness without epoll, for macOS: trio wakes us when a descriptor may be ready, and `select.poll` finds out which.

A trio task can wait for one event of one descriptor, so we start a task for each. The first task to wake up serves
every descriptor that's ready by then.

This is correct but slow: the cost of a wake-up grows with the number of descriptors.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import trio

from nsqcommon.wakeup import Wakeup

# Linux reports a hang-up when a connection has ended in both directions. Other systems report it as soon as the peer
# has stopped sending, even though the peer may still be reading.
_HANG_UP_IS_THE_END: Final = sys.platform == "linux"
_LOOK_AGAIN: Final = 0.05  # seconds; trio cannot wait for a hang-up alone


class PortableReadiness:
    """Implements `nsqcommon.readiness.Readiness`."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._events: dict[int, int] = {}
        self._quiet: set[int] = set()  # descriptors that no task can wait for, so we poll them every _LOOK_AGAIN
        self._waits: dict[int, list[trio.CancelScope]] = {}
        self._nursery: trio.Nursery | None = None
        self._serve: Callable[[], None] = lambda: None
        self._has_served = False  # in this round of trio's scheduler
        self._look = Wakeup()

    def register(self, descriptor: int, events: int) -> None:
        os.fstat(descriptor)  # raises OSError for a closed descriptor, as epoll would; select.poll accepts it
        self._poll.register(descriptor, events)
        self._expect(descriptor, events)

    def modify(self, descriptor: int, events: int) -> None:
        self._poll.modify(descriptor, events)
        self._ignore(descriptor)
        self._expect(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._ignore(descriptor)
        del self._events[descriptor]

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        found = self._poll.poll(timeout * 1000)
        if _HANG_UP_IS_THE_END:
            return found
        kept = [(fd, event if self._events[fd] & select.POLLIN else event & ~select.POLLHUP) for fd, event in found]
        return [(fd, event) for fd, event in kept if event]

    def watch_wakes(self, descriptor: int) -> bool:
        return False  # the caller's own task already waits for it, and trio allows only one

    async def run(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for descriptor, events in self._events.items():
                    self._attend(descriptor, events)
                while True:
                    with trio.move_on_after(_LOOK_AGAIN if self._quiet else inf):
                        await self._look.wait()
                    self._has_served = False
                    serve()
            finally:
                self._nursery = None

    def _expect(self, descriptor: int, events: int) -> None:
        self._events[descriptor] = events
        if not events:
            self._quiet.add(descriptor)
            self._look.set()
        self._attend(descriptor, events)

    def _ignore(self, descriptor: int) -> None:
        self._quiet.discard(descriptor)
        for scope in self._waits.pop(descriptor, ()):
            scope.cancel()

    def _attend(self, descriptor: int, events: int) -> None:
        if self._nursery is None:
            return
        scopes = self._waits[descriptor] = []
        for event, wait in (
            (select.POLLIN, trio.lowlevel.wait_readable),
            (select.POLLOUT, trio.lowlevel.wait_writable),
        ):
            if events & event:
                scopes.append(trio.CancelScope())
                self._nursery.start_soon(self._wait, wait, descriptor, scopes[-1])

    async def _wait(self, wait: Callable[[int], Awaitable[None]], descriptor: int, scope: trio.CancelScope) -> None:
        with scope:
            while not scope.cancel_called:  # if it was, `modify` may have started a new task that waits for the same
                try:
                    await wait(descriptor)
                except OSError:  # the system can't watch any more descriptors, or this one was closed
                    if not scope.cancel_called:
                        self._quiet.add(descriptor)
                        self._look.set()
                    return
                self._serve_once()

    def _serve_once(self) -> None:
        """Serve everything that's ready, unless one of our tasks has already done so in this round of trio's scheduler.

        Without that limit, a thousand ready descriptors would mean a thousand polls before any other task runs.
        """
        if not self._has_served:
            self._has_served = True
            self._look.set()  # makes `run` clear the flag in the next round
            self._serve()
