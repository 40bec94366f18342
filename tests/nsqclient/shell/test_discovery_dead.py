"""How often a client asks while no nsqlookupd can be reached, on trio and on asyncio. Real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from random import Random
from typing import Final

import pytest
import trio

from nsqclient import Config
from nsqclient._trio import OnTrio
from nsqclient.aio import OnAsyncio
from nsqclient.core import listings
from nsqclient.core.listings import Listings, parse_lookupd
from nsqclient.events import Event, LookupFailed
from nsqclient.shell.discovery import Discovery

LIMIT: Final = 30.0
QUERIES: Final = 20
ANSWER: Final = b'{"producers": []}'
CONFIG: Final = Config(lookupd_poll_interval=300)


class Count:
    """Calls `enough` when so many queries of the first nsqlookupd have failed."""

    def __init__(self, queries: int, address: str, enough: Callable[[], None]) -> None:
        self._left = queries
        self._lookupd = str(parse_lookupd(address))
        self._enough = enough

    def __call__(self, event: Event) -> None:
        self._left -= isinstance(event, LookupFailed) and event.lookupd == self._lookupd
        if self._left <= 0:
            self._enough()


def on_trio(queries: int, *addresses: str) -> None:
    async def main() -> None:
        enough = trio.Event()
        discovery = Discovery(
            OnTrio(),
            Listings("t"),
            [parse_lookupd(address) for address in addresses],
            CONFIG,
            random=Random(1),
            emit=Count(queries, addresses[0], enough.set),
            apply=print,
        )
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discovery.run)
                await enough.wait()
                nursery.cancel_scope.cancel()

    trio.run(main)


def on_asyncio(queries: int, *addresses: str) -> None:
    async def main() -> None:
        enough = asyncio.Event()
        discovery = Discovery(
            OnAsyncio(),
            Listings("t"),
            [parse_lookupd(address) for address in addresses],
            CONFIG,
            random=Random(1),
            emit=Count(queries, addresses[0], enough.set),
            apply=print,
        )
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(discovery.run())
            await enough.wait()
            asking.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("loop", [on_trio, on_asyncio])
def test_pauses_do_not_grow_while_no_nsqlookupd_can_be_reached(
    loop: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends only after many failures, which pauses that double would spread over hours."""
    monkeypatch.setattr(listings, "_LONGEST_BLIND", 0.01)
    with socket.socket() as bound:  # nobody listens there, and nobody else can
        bound.bind(("127.0.0.1", 0))
        loop(QUERIES, f"127.0.0.1:{bound.getsockname()[1]}")


@pytest.mark.parametrize("loop", [on_trio, on_asyncio])
def test_a_dead_nsqlookupd_is_asked_again_when_the_last_one_that_answered_dies(
    loop: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be back by then, and its pause may have become long while the other one answered."""
    monkeypatch.setattr(listings, "_FIRST_RETRY", 300.0)
    with socket.socket() as dead, socket.create_server(("127.0.0.1", 0)) as dying:
        dead.bind(("127.0.0.1", 0))
        answering = threading.Thread(target=answer_once, args=(dying,))
        answering.start()
        loop(2, *(f"127.0.0.1:{it.getsockname()[1]}" for it in (dead, dying)))
        answering.join()


def answer_once(listener: socket.socket) -> None:
    """Answer one query, so that the client waits for a change, and none after it."""
    listener.settimeout(LIMIT)
    peer, _ = listener.accept()
    with peer:
        peer.recv(4096)
        peer.sendall(
            b"HTTP/1.1 200 OK\r\nX-Nsq-Index: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (len(ANSWER), ANSWER)
        )
    listener.close()
