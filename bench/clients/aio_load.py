"""nsqclient, on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bench.clients.nsqclient_load import run
from nsqclient import aio


async def on_asyncio(count: int, job: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(job() for _ in range(count)))


if __name__ == "__main__":
    asyncio.run(run(aio, on_asyncio))
