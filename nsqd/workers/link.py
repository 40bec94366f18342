"""The socket between the supervisor and a worker: the worker says once that it is ready, and each sees the other's end.

It is the worker's standard input. If the supervisor is killed, the kernel closes its side, and the worker stops in good
order. PR_SET_PDEATHSIG would not do: it watches the thread that has started the worker, and trio starts processes in a
thread that ends when it was idle for some seconds.
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
    """The worker's end."""

    def __init__(self, *, starts_again: bool) -> None:
        self.starts_again = starts_again
        self._socket = trio.socket.from_stdlib_socket(socket.socket(fileno=os.dup(_STDIN)))

    async def tell_ready(self) -> None:
        with suppress(OSError):  # the supervisor is gone, which `wait_until_alone` sees, too
            await self._socket.send(_READY)

    async def wait_until_alone(self) -> None:
        """Return when the supervisor has ended."""
        with suppress(OSError):
            while await self._socket.recv(1):
                pass


def worker_end(environ: Mapping[str, str]) -> WorkerEnd | None:
    """Return this process's end of the link; None: no supervisor has started it."""
    said = environ.get(_VARIABLE)
    return WorkerEnd(starts_again=said == _AGAIN) if said else None


class SupervisorEnd:
    """The supervisor's end, and the worker's until that has started."""

    def __init__(self) -> None:
        ours, self.workers = socket.socketpair()
        self._socket = trio.socket.from_stdlib_socket(ours)

    async def wait_until_ready(self) -> bool:
        """Return whether the worker has become ready; False: it has ended before."""
        try:
            return await self._socket.recv(1) == _READY
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()
        self.workers.close()


def environment_of_worker(environ: Mapping[str, str], *, starts_again: bool) -> dict[str, str]:
    """Return the environment of a worker. The service manager hears of the whole, and only from the supervisor."""
    rest = {name: value for name, value in environ.items() if name != "NOTIFY_SOCKET"}
    return rest | {_VARIABLE: _AGAIN if starts_again else _FIRST}
