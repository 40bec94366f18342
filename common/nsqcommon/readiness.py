"""Which of many descriptors are ready: by epoll where the system has it, and otherwise in a way that every Unix has.

The poller asks nothing else of the operating system before it reads and writes. Linux uses epoll. Other systems use
`portable_readiness.py`, and so does Linux with NSQ_POLLER=portable, so that its tests need no other machine.
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
    """The watched descriptors, and the events that each of them is watched for: `select.POLLIN`, `select.POLLOUT`.

    Errors, and the end of a connection in both directions, are reported also where nothing is watched for.
    """

    @property
    def register(self) -> Callable[[int, int], None]:
        """Watch a descriptor for these events. Raise OSError if that is impossible."""

    @property
    def modify(self) -> Callable[[int, int], None]:
        """Watch it for other events."""

    @property
    def unregister(self) -> Callable[[int], None]:
        """Watch it no longer. It may be closed then, or be waited for by others."""

    @property
    def poll(self) -> Callable[[float], list[tuple[int, int]]]:
        """Return the descriptors that are ready, with their events. If there are none, block for up to so many seconds."""

    def watch_wakes(self, descriptor: int) -> bool:
        """Report this descriptor each time a thread writes to it. Return False if that is impossible.

        Nobody has to read from it for the next report.
        """

    async def run(self, serve: Callable[[], None]) -> None:
        """Call `serve` whenever something is ready, or may be, until cancelled. Other tasks run in between."""


class EpollReadiness:
    """The epoll of Linux, on which trio can wait as on any other descriptor."""

    __slots__ = ("_epoll", "modify", "poll", "register", "unregister")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.register = self._epoll.register  # epoll's own, so that an event costs no call in between
        self.modify = self._epoll.modify
        self.unregister = self._epoll.unregister
        self.poll = self._epoll.poll

    def watch_wakes(self, descriptor: int) -> bool:
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        return True

    async def run(self, serve: Callable[[], None]) -> None:
        descriptor = self._epoll.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)  # always lets others run first
            serve()


def make_readiness() -> Readiness:
    """Return epoll, or the portable way where there is none or NSQ_POLLER=portable asks for it."""
    if hasattr(select, "epoll") and os.environ.get(VARIABLE) != "portable":
        return EpollReadiness()
    return PortableReadiness()
