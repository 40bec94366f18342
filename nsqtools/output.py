"""Standard output for the tools: bytes, written unbuffered and completely, by tasks that can be cancelled."""

from __future__ import annotations

import errno
import json
import os
import select
import stat
from collections.abc import Mapping
from typing import Any, Final

import trio

from nsqtools.command import OutputClosed
from nsqtools.history import header_text

_STANDARD: Final = 1
# A writable pipe takes this many bytes without blocking.
_ATOMIC: Final = select.PIPE_BUF


class Output:
    """A descriptor: a pipe, a terminal or a file. It stays blocking, because other processes may share it."""

    def __init__(self, descriptor: int = _STANDARD) -> None:
        """Raise OutputClosed if the descriptor is closed."""
        self._descriptor = descriptor
        try:
            self._never_blocks = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError as error:
            raise OutputClosed from error
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raise OutputClosed, or OSError for any other failure."""
        left = memoryview(data)
        try:
            while left:
                await self._wait()
                left = left[os.write(self._descriptor, left if self._never_blocks else left[:_ATOMIC]) :]
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise OutputClosed from error
            raise

    async def _wait(self) -> None:
        if self._never_blocks or self._poll.poll(0):
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_writable(self._descriptor)


def message_line(topic: str, body: bytes, about: Mapping[str, Any], *, print_topic: bool, as_json: bool) -> bytes:
    """Return a message's body, or a JSON object with everything about it."""
    if as_json:
        return json.dumps({"topic": topic, **about}).encode() + b"\n"
    head = f"{topic} | ".encode() if print_topic else b""
    return b"%b%b\n" % (head, body)


def header_lines(headers: Mapping[str, bytes]) -> bytes:
    """Return a line for each header: its name, and its value as JSON, so that it stays on one line."""
    return b"".join(
        b"%b: %b\n" % (name.encode(), json.dumps(header_text(value)).encode()) for name, value in headers.items()
    )
