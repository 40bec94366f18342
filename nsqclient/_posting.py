"""The request that takes a message back or reschedules it, on trio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqclient.core.errors import ConnectError
from nsqclient.shell.tls import context_of
from nsqcommon import http_client

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.core.recall import Place


async def post(place: Place, target: str, config: Config) -> tuple[int, bytes]:
    """Send a POST and return status and body of the answer. Raise ConnectError."""
    try:
        answer = await http_client.post(
            place.host,
            place.port,
            target,
            name=place.name,
            tls=context_of(config) if place.is_secure else None,
            headers=place.headers,
        )
    except http_client.HttpFailed as error:
        raise ConnectError(f"HTTP port {place.port}: {error}") from error
    return answer.status, answer.body
