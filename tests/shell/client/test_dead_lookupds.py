"""How often a client asks while no nsqlookupd can be reached, on trio and on asyncio. Real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from random import Random
from typing import Final

import pytest
import trio

from nsqclient import Config, _listings
from nsqclient._aio_discovery import Discovery as AioDiscovery
from nsqclient._discovery import Discovery
from nsqclient._listings import Listings, parse_lookupd
from nsqclient.events import Event, LookupFailed

LIMIT: Final = 30.0
QUERIES: Final = 20
CONFIG: Final = Config(lookupd_poll_interval=300)


class Count:
    """Calls `enough` after so many failures."""

    def __init__(self, enough: Callable[[], None]) -> None:
        self._left = QUERIES
        self._enough = enough

    def __call__(self, event: Event) -> None:
        self._left -= isinstance(event, LookupFailed)
        if self._left <= 0:
            self._enough()


def on_trio(address: str) -> None:
    async def main() -> None:
        enough = trio.Event()
        discovery = Discovery(
            Listings("t"), [parse_lookupd(address)], CONFIG, random=Random(1), emit=Count(enough.set), apply=print
        )
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discovery.run)
                await enough.wait()
                nursery.cancel_scope.cancel()

    trio.run(main)


def on_asyncio(address: str) -> None:
    async def main() -> None:
        enough = asyncio.Event()
        discovery = AioDiscovery(
            Listings("t"), [parse_lookupd(address)], CONFIG, random=Random(1), emit=Count(enough.set), apply=print
        )
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
            started: list[asyncio.Task[None]] = []
            discovery.start(lambda work: started.append(tasks.create_task(work)))
            await enough.wait()
            for task in started:
                task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("loop", [on_trio, on_asyncio])
def test_pauses_do_not_grow_while_no_nsqlookupd_can_be_reached(
    loop: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends only after many failures, which pauses that double would spread over hours."""
    monkeypatch.setattr(_listings, "_LONGEST_BLIND", 0.01)
    with socket.socket() as bound:  # nobody listens there, and nobody else can
        bound.bind(("127.0.0.1", 0))
        loop(f"127.0.0.1:{bound.getsockname()[1]}")
