"""The interface between the poller and the operating system, which reports the descriptors that are ready.

The poller depends only on this interface, so both implementations run the same tests. Linux uses epoll, and other
systems use `portable_readiness.py`. On Linux, NSQ_POLLER=portable selects the latter, so that you can test it without
another machine.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from typing import Final, Protocol

import trio

from nsqcommon.portable_readiness import PortableReadiness

VARIABLE: Final = "NSQ_POLLER"


class Readiness(Protocol):
    """A set of watched descriptors, each with its events: `select.POLLIN`, `select.POLLOUT`, both or none.

    Errors, and the end of a connection in both directions, are always reported, even for a descriptor without events.
    """

    @property
    def register(self) -> Callable[[int, int], None]:
        """Watch a descriptor for these events. Raises OSError if that is impossible."""

    @property
    def modify(self) -> Callable[[int, int], None]:
        """Change the events that we watch a descriptor for."""

    @property
    def unregister(self) -> Callable[[int], None]:
        """Stop watching a descriptor. After that you may close it, or wait for it elsewhere."""

    @property
    def poll(self) -> Callable[[float], list[tuple[int, int]]]:
        """Return the ready descriptors with their events. If none is ready, block for at most this many seconds."""

    def watch_wakes(self, descriptor: int) -> bool:
        """Report this descriptor once for each write to it. Return False if that's impossible.

        It's reported again after the next write, even if nothing was read from it in between.
        """

    async def run(self, serve: Callable[[], None]) -> None:
        """Call `serve` whenever a descriptor may be ready, until cancelled. Other tasks run in between."""


class EpollReadiness:
    """Linux's epoll. It's a descriptor itself, so trio can wait for it."""

    __slots__ = ("_epoll", "modify", "poll", "register", "unregister")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.register = self._epoll.register  # epoll's own methods, because a wrapper would cost a call per event
        self.modify = self._epoll.modify
        self.unregister = self._epoll.unregister
        self.poll = self._epoll.poll

    def watch_wakes(self, descriptor: int) -> bool:
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        return True

    async def run(self, serve: Callable[[], None]) -> None:
        descriptor = self._epoll.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)  # a checkpoint even if it's readable, so other tasks run
            serve()


def make_readiness() -> Readiness:
    """Return epoll, or the portable implementation if there's no epoll or NSQ_POLLER=portable is set."""
    if hasattr(select, "epoll") and os.environ.get(VARIABLE) != "portable":
        return EpollReadiness()
    return PortableReadiness()
