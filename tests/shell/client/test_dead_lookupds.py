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
QUERIES: Final = 20  # with pauses that double, the last of them would come after a week
CONFIG: Final = Config(lookupd_poll_interval=300)


def on_trio(address: str, emit: Callable[[Event], None], has_ended: Callable[[], bool]) -> None:
    async def main() -> None:
        discovery = Discovery(
            Listings("t"), [parse_lookupd(address)], CONFIG, random=Random(1), emit=emit, apply=lambda: None
        )
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discovery.run)
                while not has_ended():
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    trio.run(main)


def on_asyncio(address: str, emit: Callable[[Event], None], has_ended: Callable[[], bool]) -> None:
    async def main() -> None:
        discovery = AioDiscovery(
            Listings("t"), [parse_lookupd(address)], CONFIG, random=Random(1), emit=emit, apply=lambda: None
        )
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
            started: list[asyncio.Task[None]] = []
            discovery.start(lambda work: started.append(tasks.create_task(work)))
            while not has_ended():
                await asyncio.sleep(0.01)
            for task in started:
                task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("loop", [on_trio, on_asyncio])
def test_pauses_do_not_grow_while_no_nsqlookupd_can_be_reached(
    loop: Callable[[str, Callable[[Event], None], Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_listings, "_LONGEST_BLIND", 0.01)
    emitted: list[Event] = []
    with socket.socket() as bound:  # nobody listens there, and nobody else can
        bound.bind(("127.0.0.1", 0))
        loop(f"127.0.0.1:{bound.getsockname()[1]}", emitted.append, lambda: _failures(emitted) >= QUERIES)
    assert _failures(emitted) >= QUERIES


def _failures(emitted: list[Event]) -> int:
    return sum(isinstance(event, LookupFailed) for event in emitted)
