"""A stream of events releases everything, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsqadmin.http.event_stream import EventStream


async def _nothing() -> AsyncIterator[bytes]:
    for piece in (b"a", b"b"):
        yield piece


@pytest.mark.parametrize("fails_at", [0, 1, 2, 99])
def test_it_is_closed_whenever_its_peer_goes(fails_at: int) -> None:
    closed: list[bool] = []
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(30)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if len(sent) == fails_at:
            raise OSError("gone")
        sent.append(message)

    async def run() -> None:
        stream = EventStream(_nothing, close=lambda: closed.append(True))
        try:
            await stream({}, receive, send)
        except OSError:
            assert fails_at < 99

    asyncio.run(run())
    assert closed
