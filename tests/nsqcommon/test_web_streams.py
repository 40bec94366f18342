"""Answers that are made while they are sent: their end, and peers that leave, stall, or come in crowds."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TYPE_CHECKING

import trio

from nsqcommon.http_api import ClientGone, HttpApi, Request, Response, Route, Stream, text
from nsqcommon.web import STALL, Web, attend, open_web, run_trio
from tests.support.jumping import jumping
from tests.support.served import serve_socket

if TYPE_CHECKING:
    import pytest

PIECE = b"x" * 100_000
LIMIT = 30.0  # seconds


class Source:
    """A handler's stream: this many pieces, then the end or an error."""

    def __init__(self, pieces: int, *, broken: bool = False) -> None:
        self.pieces = pieces
        self.broken = broken
        self.taken = 0
        self.closed = trio.Event()

    async def next_piece(self) -> bytes | None:
        await run_trio(trio.sleep, 0)
        if self.taken == self.pieces:
            if self.broken:
                raise OSError("the disk is gone")
            return None
        self.taken += 1
        return PIECE

    async def close(self) -> None:
        assert not self.closed.is_set(), "closed twice"
        self.closed.set()

    async def answer(self, request: Request) -> Stream:
        return Stream(((b"content-type", b"text/x"),), self.next_piece, self.close)


async def ok(request: Request) -> Response:
    return text("OK")


def run(source: Source, test: Callable[[Web], Awaitable[None]]) -> None:
    api = HttpApi(
        [Route("GET", "/stream", source.answer), Route("GET", "/ok", ok)],
        log=logging.getLogger("nsqd.test"),
        attend=attend,
    )
    run_api(api, test)


def run_api(api: HttpApi[Route], test: Callable[[Web], Awaitable[None]]) -> None:
    @jumping
    async def main() -> None:
        async with open_web(api) as web:
            await test(web)

    main()


def connected(web: Web, request: bytes) -> trio.SocketStream:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    serve_socket(web, theirs, request)
    return trio.SocketStream(trio.socket.from_stdlib_socket(ours))


def get(path: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET %b HTTP/1.1" % path, b"Host: x", *headers, b"", b""])


def unchunked(answer: bytes) -> tuple[bytes, bool]:
    """Return the body, and whether it is complete."""
    rest = answer.partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            return body, rest == b"\r\n"
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body, False


def test_a_stream_comes_whole_and_the_connection_lives_on() -> None:
    source = Source(20)

    async def test(web: Web) -> None:
        stream = connected(web, get(b"/stream") + get(b"/ok", b"Connection: close"))
        answer = b"".join([piece async for piece in stream])
        first, _, second = answer.partition(b"0\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nDate: ")
        assert unchunked(first + b"0\r\n\r\n") == (PIECE * 20, True)
        assert second.endswith(b"OK")
        await stream.aclose()

    run(source, test)
    assert source.closed.is_set()


def test_an_empty_stream() -> None:
    source = Source(0)

    async def test(web: Web) -> None:
        stream = connected(web, get(b"/stream", b"Connection: close"))
        assert unchunked(b"".join([piece async for piece in stream])) == (b"", True)
        await stream.aclose()

    run(source, test)


def test_who_cannot_be_told_where_it_ends_gets_none() -> None:
    source = Source(3)

    async def test(web: Web) -> None:
        stream = connected(web, b"GET /stream HTTP/1.0\r\n\r\n")
        answer = b"".join([piece async for piece in stream])
        assert answer.startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")
        assert source.closed.is_set()
        await stream.aclose()

    run(source, test)


def test_an_error_on_the_way_leaves_the_answer_unfinished(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(3, broken=True)

    async def test(web: Web) -> None:
        stream = connected(web, get(b"/stream"))
        answer = b""
        try:
            async for piece in stream:
                answer += piece
        except trio.BrokenResourceError:
            pass
        body, whole = unchunked(answer)
        assert PIECE.startswith(body[: len(PIECE)])
        assert not whole
        await source.closed.wait()
        await stream.aclose()

    run(source, test)
    assert "the disk is gone" in caplog.text


def test_no_more_is_made_than_the_peer_takes() -> None:
    source = Source(10_000)

    async def test(web: Web) -> None:
        stream = connected(web, get(b"/stream"))
        await trio.sleep(1)  # on this clock: until nothing goes on by itself
        before = source.taken
        await trio.sleep(1)
        assert 0 < source.taken == before < 100
        await stream.aclose()
        await source.closed.wait()

    run(source, test)


def test_a_peer_that_leaves_ends_it() -> None:
    source = Source(1_000_000)

    async def test(web: Web) -> None:
        with closing(connected(web, get(b"/stream")).socket) as sock:
            await sock.recv(1000)
        await source.closed.wait()

    run(source, test)
    assert source.taken < 1000


def test_a_peer_that_leaves_ends_it_also_with_a_request_behind_it() -> None:
    source = Source(2000)

    async def test(web: Web) -> None:
        with closing(connected(web, get(b"/stream") + get(b"/ok")).socket) as sock:
            await sock.recv(1000)
        await source.closed.wait()

    run(source, test)
    assert source.taken < 1000


def test_a_peer_that_half_closes_ends_a_wait_also_with_a_request_behind_it() -> None:
    """It may have gone for good, and a wait for something to send could last for ever."""

    async def wait(request: Request) -> Response:
        await request.wait_until_gone()
        raise ClientGone

    async def main(web: Web) -> None:
        stream = connected(web, get(b"/wait") + get(b"/wait"))
        await trio.sleep(1)  # on this clock: until the first waits
        await stream.send_eof()
        assert await stream.receive_some() == b""
        await stream.aclose()

    run_api(HttpApi([Route("GET", "/wait", wait)], log=logging.getLogger("nsqd.test")), main)


def test_a_peer_that_takes_nothing_is_dropped() -> None:
    source = Source(1_000_000)

    async def test(web: Web) -> None:
        stream = connected(web, get(b"/stream"))
        await source.closed.wait()
        assert web.connections == 0
        await stream.aclose()

    run(source, test)


def test_a_slow_peer_is_not() -> None:
    source = Source(40)

    async def test(web: Web) -> None:
        stream = connected(web, get(b"/stream", b"Connection: close"))
        answer = b""
        async for piece in stream:
            answer += piece
            await trio.sleep(STALL / 10)
        assert unchunked(answer)[1]
        await stream.aclose()

    run(source, test)


def test_at_the_end_of_the_grace_a_stream_is_cut() -> None:
    source = Source(1_000_000)

    async def main() -> None:
        api = HttpApi([Route("GET", "/stream", source.answer)], log=logging.getLogger("nsqd.test"), attend=attend)
        with trio.fail_after(LIMIT):
            async with open_web(api, grace=0.2) as web:
                stream = connected(web, get(b"/stream"))
                await stream.receive_some(1000)
        await stream.aclose()

    trio.run(main)
    assert source.closed.is_set()
