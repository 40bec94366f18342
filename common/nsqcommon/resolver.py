"""Resolves host names in separate threads.

The C library blocks while it resolves a name, for ten seconds or more if no name server answers, and we can't interrupt
it. By default, trio uses the same threads for everything, so forty slow names would leave no thread to sync the disk.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import trio

_THREADS: Final = 8  # names that we resolve at the same time; further callers wait


class Resolver(trio.abc.HostnameResolver):
    """Resolves host names for all of trio. Pass it to `trio.socket.set_custom_hostname_resolver`."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def getaddrinfo(
        self, host: bytes | None, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        """Resolve like `socket.getaddrinfo`.

        If it's cancelled, this call ends immediately, but the thread runs until the C library returns.
        """
        return await trio.to_thread.run_sync(
            socket.getaddrinfo, host, port, family, type, proto, flags, limiter=self._limiter, abandon_on_cancel=True
        )

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        """Resolve like `socket.getnameinfo`. Cancelling works as in `getaddrinfo`."""
        return await trio.to_thread.run_sync(
            socket.getnameinfo, sockaddr, flags, limiter=self._limiter, abandon_on_cancel=True
        )
