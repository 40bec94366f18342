"""A descriptor that a thread makes readable, so that a loop which waits for it wakes up: an eventfd, or a pipe."""

from __future__ import annotations

import os
from functools import partial
from typing import Final, Protocol

_MOST_AT_ONCE: Final = 4096


class Doorbell(Protocol):
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
