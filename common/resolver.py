"""Names of hosts to addresses, in threads of their own.

The C library blocks while it asks, for ten seconds and more when no name server answers, and nothing can end it. trio
would have it block the threads that it has for everything: forty questions, and no disk would be synced any more.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import trio

_THREADS: Final = 8  # names that are asked for at once; more wait, as long as who asks does


class Resolver(trio.abc.HostnameResolver):
    """Serves all of trio once it is given to `trio.socket.set_custom_hostname_resolver`."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_THREADS)

    async def getaddrinfo(
        self, host: bytes | None, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        """As the function of `socket`. Cancelling it leaves the thread to its fate."""
        return await trio.to_thread.run_sync(
            socket.getaddrinfo, host, port, family, type, proto, flags, limiter=self._limiter, abandon_on_cancel=True
        )

    async def getnameinfo(self, sockaddr: Any, flags: int) -> tuple[str, str]:
        """As the function of `socket`."""
        return await trio.to_thread.run_sync(
            socket.getnameinfo, sockaddr, flags, limiter=self._limiter, abandon_on_cancel=True
        )
