"""What a consumer makes of the HTTP responses of an nsqlookupd, on trio and on asyncio. Real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from threading import Thread
from typing import Final

import pytest
import trio

from nsqclient import Config
from nsqclient._trio import OnTrio
from nsqclient.aio import OnAsyncio
from nsqclient.core.listings import Listings, parse_lookupd
from nsqclient.events import Event, LookupFailed
from nsqclient.shell.discovery import Discovery

LIMIT: Final = 30.0
CONFIG: Final = Config(lookupd_poll_timeout=10, lookupd_wait=False)
BODY: Final = b'{"producers": [{"broadcast_address": "h", "tcp_port": 4150}]}'
LISTED: Final = ["h:4150"]
OK: Final = b"HTTP/1.1 200 OK\r\n"
LENGTH: Final = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"
CHUNKS: Final = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])


@contextmanager
def lookupd_that_sends(*pieces: bytes) -> Iterator[str]:
    """Yield the address of a server that sends the pieces one by one to its only client, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection = listener.accept()[0]
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.recv(65536)
                try:
                    for piece in pieces:
                        connection.sendall(piece)
                except OSError:
                    pass  # the client has hung up first

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(LIMIT)
        assert not thread.is_alive()


def on_trio(address: str, emit: Callable[[Event], None], apply: Callable[[Listings], None]) -> None:
    async def main() -> None:
        listings = Listings("t")
        discovery = Discovery(
            OnTrio(),
            listings,
            [parse_lookupd(address)],
            CONFIG,
            random=Random(1),
            emit=emit,
            apply=lambda: apply(listings),
        )
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discovery.run)
                await discovery.first_round.wait()
                nursery.cancel_scope.cancel()

    trio.run(main)


def on_asyncio(address: str, emit: Callable[[Event], None], apply: Callable[[Listings], None]) -> None:
    async def main() -> None:
        listings = Listings("t")
        discovery = Discovery(
            OnAsyncio(),
            listings,
            [parse_lookupd(address)],
            CONFIG,
            random=Random(1),
            emit=emit,
            apply=lambda: apply(listings),
        )
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(discovery.run())
            await discovery.first_round.wait()
            asking.cancel()

    asyncio.run(main())


Loop = Callable[[str, Callable[[Event], None], Callable[[Listings], None]], None]
both_loops = pytest.mark.parametrize("loop", [on_trio, on_asyncio])


def ask(loop: Loop, pieces: Sequence[bytes]) -> list[str] | str:
    """Return the nsqds that an answer in these pieces lists, or why the query failed."""
    emitted: list[Event] = []
    listings: list[Listings] = []
    with lookupd_that_sends(*pieces) as address:
        loop(address, emitted.append, listings.append)
    failures = [event.reason for event in emitted if isinstance(event, LookupFailed)]
    return failures[0] if failures else list(listings[0].nsqds)


@both_loops
@pytest.mark.parametrize(
    "reply",
    [
        OK + LENGTH + b"\r\n" + BODY,
        OK + CHUNKED + b"\r\n" + CHUNKS,
        OK + CHUNKED + b"\r\n" + CHUNKS.replace(b"5\r\n", b"5;a=b\r\n", 1).replace(b"0\r\n", b"0\r\nX-Trailer: y\r\n"),
        b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\n" + BODY,
        b"HTTP/1.1 200\r\n" + LENGTH + b"\r\n" + BODY,
        b"\r\n" + OK + LENGTH + b"\r\n" + BODY,
        OK + LENGTH + b"X: " + b"x" * 200_000 + b"\r\n\r\n" + BODY,
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + LENGTH + b"\r\n" + BODY,
    ],
)
def test_answer_is_accepted(loop: Loop, reply: bytes) -> None:
    assert ask(loop, [reply]) == LISTED


@both_loops
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"", "connection closed within the response"),
        (OK + LENGTH, "connection closed within the response"),
        (OK + LENGTH + b"\r\n" + BODY[:-1], "connection closed within the response"),
        (OK + CHUNKED + b"\r\n" + CHUNKS[:-2], "connection closed within the response"),
        (OK + b"Transfer-Encoding: gzip\r\n\r\n" + BODY, "connection closed within the response"),
        (b"HTTP/1.1 2x0 OK\r\n" + LENGTH + b"\r\n" + BODY, "Invalid status code"),
        (b"HTTP/1.1 2000 OK\r\n" + LENGTH + b"\r\n" + BODY, "Invalid response status"),
        (b"HTTP/1.2 200 OK\r\n" + LENGTH + b"\r\n" + BODY, "Invalid HTTP version"),
        (b"GET / HTTP/1.1\r\n\r\n", "Expected HTTP/"),
        (b"HTTP/1.1 101 Over\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "an upgrade to another protocol"),
        (OK + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY, "Unexpected whitespace after header value"),
        (OK + LENGTH + LENGTH + b"\r\n" + BODY, "Duplicate Content-Length"),
        (OK + LENGTH + CHUNKED + b"\r\n" + CHUNKS, "Transfer-Encoding can't be present with Content-Length"),
        (OK + CHUNKED + LENGTH + b"\r\n" + CHUNKS, "Content-Length can't be present with Transfer-Encoding"),
        (OK + b"Content-Length: -1\r\n\r\n", "Invalid character in Content-Length"),
        (OK + CHUNKED + b"\r\n-1\r\n", "Invalid character in chunk size"),
        (OK + CHUNKED + b"\r\n" + b"f" * 17 + b"\r\n", "Chunk size overflow"),
        (OK + CHUNKED.replace(b"\r\n", b"\n") + b"\n", "Missing expected CR after header value"),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "got response 302"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops", "got response 500 'oops'"),
    ],
)
def test_answer_is_refused(loop: Loop, reply: bytes, error: str) -> None:
    assert error in ask(loop, [reply])


@both_loops
def test_body_that_ends_with_the_connection_is_accepted(loop: Loop) -> None:
    assert ask(loop, [OK + b"\r\n" + BODY]) == LISTED


@both_loops
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ([OK + b"Content-Length: 16777217\r\n\r\n"], "response of more than 16777216 bytes"),
        ([OK, *[b"X: " + b"x" * 10_000 + b"\r\n"] * 30], "response with too much besides its body"),
        (
            [OK + CHUNKED + b"\r\n", *[b"1" + b";x" * 5000 + b"\r\n{\r\n"] * 30],
            "response with too much besides its body",
        ),
        (
            [OK + CHUNKED + b"\r\n", *[b"100000\r\n" + b" " * 0x100000 + b"\r\n"] * 17],
            "response of more than 16777216 bytes",
        ),
    ],
)
def test_answer_has_bounds(loop: Loop, reply: Sequence[bytes], error: str) -> None:
    assert error in ask(loop, reply)
