"""nsqadmin with a resolver that takes every name for this machine: `python -m tests.support.wide_admin`, for wide.py."""

from __future__ import annotations

import socket
import sys
from typing import Any

import trio

from nsqadmin.daemon import run
from nsqadmin.options import Options
from nsqcommon.daemon import run_daemon


class LocalNames(trio.abc.HostnameResolver):
    """Resolves every name to this machine."""

    async def getaddrinfo(
        self,
        host: bytes | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        return socket.getaddrinfo("127.0.0.1", port, family, type, proto, flags)

    async def getnameinfo(self, sockaddr: tuple[str, int] | tuple[str, int, int, int], flags: int) -> tuple[str, str]:
        return socket.getnameinfo(sockaddr, flags)


async def _run(options: Options) -> None:
    trio.socket.set_custom_hostname_resolver(LocalNames())
    await run(options)


if __name__ == "__main__":
    sys.exit(run_daemon("nsqadmin", Options, _run))
