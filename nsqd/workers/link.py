"""The socket between the supervisor and a worker. The worker sends one byte when it is ready.

EOF means that the other process has exited. The socket is the worker's standard input. If the supervisor is killed, the
kernel closes the supervisor's side, and the worker shuts down cleanly. We can't use PR_SET_PDEATHSIG for that: it fires
when the *thread* that started the worker ends, and trio starts processes in a pool thread that exits after a few idle
seconds.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import trio

_VARIABLE: Final = "NSQD_SUPERVISED"  # set by the supervisor only
_FIRST: Final = "first"
_AGAIN: Final = "again"
_STDIN: Final = 0
_READY: Final = b"R"


class WorkerEnd:
    """The worker's side of the socket."""

    def __init__(self, *, starts_again: bool) -> None:
        self.starts_again = starts_again
        self._socket = trio.socket.from_stdlib_socket(socket.socket(fileno=os.dup(_STDIN)))

    async def report_ready(self) -> None:
        with suppress(OSError):  # the supervisor is gone; `wait_for_supervisor_exit` handles that
            await self._socket.send(_READY)

    async def wait_for_supervisor_exit(self) -> None:
        """Wait for EOF, which means that the supervisor has exited."""
        with suppress(OSError):
            while await self._socket.recv(1):
                pass


def worker_end(environ: Mapping[str, str]) -> WorkerEnd | None:
    """Return this process's side of the socket, or None if it has no supervisor."""
    start = environ.get(_VARIABLE)
    return WorkerEnd(starts_again=start == _AGAIN) if start else None


class SupervisorEnd:
    """The supervisor's side of the socket. It also holds the worker's side until the worker has started."""

    def __init__(self) -> None:
        ours, self.workers = socket.socketpair()
        self._socket = trio.socket.from_stdlib_socket(ours)

    async def wait_until_ready(self) -> bool:
        """Wait for the worker's ready byte. Return False if the worker exits first."""
        try:
            return await self._socket.recv(1) == _READY
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()
        self.workers.close()


def environment_of_worker(environ: Mapping[str, str], *, starts_again: bool) -> dict[str, str]:
    """Return a worker's environment, without NOTIFY_SOCKET: only the supervisor reports to the service manager."""
    rest = {name: value for name, value in environ.items() if name != "NOTIFY_SOCKET"}
    return rest | {_VARIABLE: _AGAIN if starts_again else _FIRST}
