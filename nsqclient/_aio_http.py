"""One request over HTTP on asyncio."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final

from nsqcommon.net import join_host_port
from nsqcommon.wire.http_exchange import MOST_BYTES, Answer, Headers, ResponseReader, request_bytes

_READ_SIZE: Final = 64 * 1024


async def exchange(
    method: str,
    host: str,
    port: int,
    target: str,
    *,
    name: str = "",
    headers: Headers = (),
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send a request on a connection of its own and return the answer. Raise OSError or BadResponse.

    `name` is the server's, if it is not its host.
    """
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=(name or host) if tls is not None else None
    )
    try:
        request = request_bytes(method, join_host_port(name or host, port), target, [("Connection", "close"), *headers])
        writer.write(request)
        with ResponseReader(most=MOST_BYTES) as response:
            while not response.is_complete:
                response.receive(await reader.read(_READ_SIZE))
            return response.answer()
    finally:
        # `close` alone would leave TLS waiting for the peer's goodbye, perhaps until after the end of the loop.
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
