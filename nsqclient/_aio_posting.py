"""The request that takes a message back or reschedules it, on asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqclient._aio_http import exchange
from nsqclient.core.errors import ConnectError
from nsqclient.shell.tls import context_of
from nsqcommon.wire.http_exchange import BadResponse

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.recall import Place


async def post(place: Place, target: str, config: Config) -> tuple[int, bytes]:
    """Send a POST and return status and body of the answer. Raise ConnectError."""
    try:
        answer = await exchange(
            "POST",
            place.host,
            place.port,
            target,
            name=place.name,
            headers=place.headers,
            tls=context_of(config) if place.is_secure else None,
        )
    except (OSError, ValueError, BadResponse) as error:
        raise ConnectError(f"HTTP port {place.port}: {error}") from error
    return answer.status, answer.body
