"""Reading a request's body."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.requests import Request

from nsqadmin.http.responses import body_of
from nsqcommon.http_api import CUT_SHORT, ClientGone, HttpError


def read(*messages: dict[str, Any] | str, limit: int = 100) -> bytes:
    """Read a body that arrives in these messages. A string is a key that the server puts into the scope."""
    scope: MutableMapping[str, Any] = {"type": "http", "method": "POST", "headers": []}
    coming = iter(messages)

    async def receive() -> MutableMapping[str, Any]:
        message = next(coming)
        if isinstance(message, str):
            scope[message] = True
            message = part(b"")
        return message

    return asyncio.run(body_of(Request(scope, receive), limit=limit))


def part(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


def test_a_body_may_come_in_parts() -> None:
    assert read(part(b"one "), part(b"and "), part(b"two", more=False)) == b"one and two"


def test_a_long_body_is_refused() -> None:
    assert read(part(bytes(100), more=False)) == bytes(100)
    with pytest.raises(HttpError, match="INVALID_VALUE"):
        read(part(bytes(50)), part(bytes(51)))


def test_a_body_that_is_cut_short_is_refused() -> None:
    with pytest.raises(HttpError, match="INTERNAL_ERROR"):
        read(part(b"one "), CUT_SHORT)


def test_a_peer_may_leave() -> None:
    with pytest.raises(ClientGone):
        read(part(b"one "), {"type": "http.disconnect"})
