"""Readiness without epoll, for macOS: `select.poll` says what is ready, and trio waits until something may be.

trio can wait for one event of one descriptor in one task. So each descriptor has a task that waits, and ends when its
descriptor is ready. That wakes the poller, which asks `select.poll` about all descriptors at once. Only when nothing is
ready any more, the descriptors that have lost their task get another one.

This is right, and not quick: each wake-up costs something for each descriptor.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Final

import trio

from nsqcommon.wakeup import Wakeup

# Linux reports a hang-up when a connection has ended in both directions; other systems do as soon as the peer has stopped
# sending, although it may go on reading.
_HANG_UP_IS_THE_END: Final = sys.platform == "linux"
_LOOK_AGAIN: Final = 0.05  # seconds; trio cannot wait for a hang-up alone


class PortableReadiness:
    """Implements `nsqcommon.readiness.Readiness`."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._events: dict[int, int] = {}
        self._unattended: set[int] = set()  # descriptors that nobody waits for now, though something is expected
        self._quiet: set[int] = set()  # descriptors that no task can wait for, so they are looked at now and then
        self._waits: dict[int, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._may_be_ready = Wakeup()

    def register(self, descriptor: int, events: int) -> None:
        os.fstat(descriptor)  # raises OSError as epoll would: select.poll takes a closed descriptor
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
        return False  # whoever is woken by it also waits for it in a task, and trio lets only one task wait

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                yield self._wait
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    async def _wait(self) -> None:
        if self.poll(0):
            await trio.lowlevel.checkpoint()
            return
        self._may_be_ready.clear()
        for descriptor in self._unattended:
            self._attend(descriptor)
        self._unattended.clear()
        with trio.move_on_after(_LOOK_AGAIN if self._quiet else inf):
            await self._may_be_ready.wait()

    def _expect(self, descriptor: int, events: int) -> None:
        self._events[descriptor] = events
        (self._unattended if events else self._quiet).add(descriptor)
        self._may_be_ready.set()  # a poller that sleeps has to see this descriptor

    def _ignore(self, descriptor: int) -> None:
        self._quiet.discard(descriptor)
        self._unattended.discard(descriptor)
        if (scope := self._waits.pop(descriptor, None)) is not None:
            scope.cancel()

    def _attend(self, descriptor: int) -> None:
        assert self._nursery is not None
        scope = self._waits[descriptor] = trio.CancelScope()
        self._nursery.start_soon(self._wait_for, descriptor, self._events[descriptor], scope)

    async def _wait_for(self, descriptor: int, events: int, scope: trio.CancelScope) -> None:
        then = self._unattended
        with scope:
            try:
                if events == select.POLLIN:
                    await trio.lowlevel.wait_readable(descriptor)
                elif events == select.POLLOUT:
                    await trio.lowlevel.wait_writable(descriptor)
                else:
                    await _wait_for_either(descriptor)
            except* OSError:  # the system has no room for more, or the descriptor was closed before this task began
                then = self._quiet
        if self._waits.get(descriptor) is scope:
            del self._waits[descriptor]
            then.add(descriptor)
            self._may_be_ready.set()


async def _wait_for_either(descriptor: int) -> None:
    async def wait_for(one: Callable[[int], Awaitable[None]]) -> None:
        await one(descriptor)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for, trio.lowlevel.wait_readable)
        nursery.start_soon(wait_for, trio.lowlevel.wait_writable)
