"""uvicorn inside trio on real sockets: adopted connections, Go's behaviour, and shutdown."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nsqcommon.budget import Budget
from nsqcommon.http_api import HttpApi, HttpError, Request, Response, Route, text
from nsqcommon.net import bind
from nsqcommon.polled_transport import ProtocolHandler
from nsqcommon.poller import Connection
from nsqcommon.secure import SecureHandler
from nsqcommon.web import LINGER, Web, linger, open_web, run_trio, serve
from tests.support.client import TIMEOUT
from tests.support.jumping import jumping
from tests.support.served import serve_socket

LOG = logging.getLogger("nsqd.test")


async def ok(request: Request) -> Response:
    return text("OK")


async def length(request: Request) -> Response:
    return text(str(len(await request.read(10**7))))


async def wait(request: Request) -> Response:
    await run_trio(trio.sleep, float(request.query()["seconds"]))
    return text("waited")


async def refuse(request: Request) -> Response:
    raise HttpError(413, "TOO_BIG", close=True)


async def crash(request: Request) -> Response:
    raise RuntimeError("boom")


API = HttpApi(
    [
        Route("GET", "/ok", ok),
        Route("POST", "/ok", ok),
        Route("POST", "/length", length),
        Route("GET", "/wait", wait),
        Route("POST", "/refuse", refuse),
        Route("GET", "/crash", crash),
    ],
    log=LOG,
    linger=linger,
)

GET = b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n"


class Peer:
    """The client's end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._received = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def answer(self) -> bytes:
        """Read one response with Content-Length."""
        while b"\r\n\r\n" not in self._received:
            await self._more()
        head = self._received.partition(b"\r\n\r\n")[0]
        size = next(
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        end = len(head) + 4 + size
        while len(self._received) < end:
            await self._more()
        answer, self._received = self._received[:end], self._received[end:]
        return answer

    async def rest(self) -> bytes:
        return self._received + b"".join([data async for data in self.stream])

    async def _more(self) -> None:
        data = await self.stream.receive_some()
        assert data, "the server closed"
        self._received += data


class Connected:
    """Makes connections for `web` to serve, and closes their other ends."""

    def __init__(self, web: Web) -> None:
        self.web = web
        self._peers: list[Peer] = []

    def __call__(self, received: bytes = b"") -> Peer:
        ours, theirs = socket.socketpair()
        serve_socket(self.web, theirs, received)
        self._peers.append(Peer(ours))
        return self._peers[-1]

    def close(self) -> None:
        for peer in self._peers:
            peer.stream.socket.close()


def run(test: Callable[[Connected], Awaitable[None]]) -> None:
    @jumping
    async def main() -> None:
        async with open_web(API) as web:
            with closing(Connected(web)) as connect:
                await test(connect)

    main()


def test_answers_what_was_received_before_and_after() -> None:
    async def test(connect: Connected) -> None:
        peer = connect(GET + GET[:10])
        first = await peer.answer()
        await peer.send(GET[10:])
        second = await peer.answer()
        lines = first.split(b"\r\n")
        assert lines[0] == b"HTTP/1.1 200 OK"
        assert lines[1] == b"X-Nsq-Content-Type: nsq; version=1.0"
        assert lines[2].startswith(b"Date: ")
        assert lines[3:] == [b"Content-Length: 2", b"Content-Type: text/plain; charset=utf-8", b"", b"OK"]
        assert second.endswith(b"\r\n\r\nOK")

    run(test)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def test(connect: Connected) -> None:
        peer = connect(b"GET /wait?seconds=0.05 HTTP/1.1\r\nHost: x\r\n\r\n" + GET * 3)
        await peer.send(GET.replace(b"/ok", b"/nothing"))
        bodies = [(await peer.answer()).partition(b"\r\n\r\n")[2] for _ in range(5)]
        assert bodies == [b"waited", b"OK", b"OK", b"OK", b'{"message":"NOT_FOUND"}']

    run(test)


def test_body_in_chunks_and_on_demand() -> None:
    async def test(connect: Connected) -> None:
        peer = connect()
        await peer.send(b"POST /length HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await peer.send(b"2\r\nde\r\n0\r\n\r\n")
        assert (await peer.answer()).endswith(b"\r\n\r\n5")
        await peer.send(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert bytes(await peer.stream.receive_some()) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await peer.send(b"abc")
        assert (await peer.answer()).endswith(b"\r\n\r\n3")

    run(test)


def test_refusal_comes_without_100_continue_and_closes() -> None:
    async def test(connect: Connected) -> None:
        peer = connect()
        await peer.send(b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\nExpect: 100-continue\r\n\r\n")
        answer = await peer.answer()
        assert answer.startswith(b"HTTP/1.1 413 Request Entity Too Large\r\n")
        assert b"\r\nConnection: close\r\n" in answer
        start = trio.current_time()
        assert await peer.rest() == b""
        assert trio.current_time() - start < 20 * LINGER

    run(test)


def test_refusal_is_seen_by_a_client_that_goes_on_sending() -> None:
    async def test(connect: Connected) -> None:
        peer = connect()
        await peer.send(b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")
        await peer.send(b"x" * 4_000_000)
        assert (await peer.answer()).startswith(b"HTTP/1.1 413 ")
        assert await peer.rest() == b""

    run(test)


@pytest.mark.parametrize(
    "garbage", [b"garbage\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET /ok HTTP/1.1\r\nBad Header\r\n\r\n"]
)
def test_garbage_is_answered_with_a_bare_400(garbage: bytes) -> None:
    async def test(connect: Connected) -> None:
        peer = connect(garbage)
        assert await peer.rest() == (
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
            b"400 Bad Request"
        )

    run(test)


def test_endless_header_is_refused() -> None:
    async def test(connect: Connected) -> None:
        peer = connect(b"GET /ok HTTP/1.1\r\nX: ")
        with suppress(trio.BrokenResourceError):
            for _ in range(40):
                await peer.send(b"x" * 65536)
        # The rest is never read, so a reset may take the answer, and always takes the connection.
        with suppress(trio.BrokenResourceError):
            assert (await peer.rest()).startswith(b"HTTP/1.1 431 ")
        assert connect.web.connections == 0

    run(test)


NO_HOST = b"400 Bad Request: missing required Host header"
TWO_HOSTS = b"400 Bad Request: too many Host headers"
REFUSED_HEADS = {
    b"GET /ok HTTP/1.1\r\n\r\n": NO_HOST,
    b"GET /ok HTTP/1.1\r\nX-Host: x\r\n\r\n": NO_HOST,
    b"POST /length HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc": NO_HOST,
    b"GET /ok HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n": TWO_HOSTS,
    b"GET /ok HTTP/1.0\r\nhost: x\r\nHOST: y\r\n\r\n": TWO_HOSTS,
    b"POST /length HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": b"400 Bad Request",
    b"GET /ok HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 65536 + b"\r\n\r\n": b"431 Request Header Fields Too Large",
    b"GET /ok HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 12_000 + b"\r\n": b"431 Request Header Fields Too Large",
    b"GET /ok?" + b"x" * 65536 + b" HTTP/1.1\r\nHost: x\r\n\r\n": b"431 Request Header Fields Too Large",
}


@pytest.mark.parametrize("head", REFUSED_HEADS, ids=lambda head: head[:60].decode())
def test_a_head_that_go_refuses_is_refused_in_its_words(head: bytes) -> None:
    async def test(connect: Connected) -> None:
        words = REFUSED_HEADS[head]
        peer = connect(head)
        assert await peer.rest() == (
            b"HTTP/1.1 " + words + b"\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n" + words
        )

    run(test)


@pytest.mark.parametrize("expect", [b"bogus", b"100-continued", b"200-ok, x"])
def test_an_expectation_that_nobody_knows_fails(expect: bytes) -> None:
    async def test(connect: Connected) -> None:
        peer = connect(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: " + expect + b"\r\n\r\nx")
        answer = await peer.rest()
        head = b"HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\nDate: "
        assert (answer[: len(head)], answer[-23:]) == (head, b"\r\nContent-Length: 0\r\n\r\n")

    run(test)


@pytest.mark.parametrize("head", [b"GET /ok HTTP/1.0\r\n\r\n", b"GET /ok HTTP/1.1\r\nHost:\r\nExpect:\r\n\r\n"])
def test_heads_that_go_accepts_are_accepted(head: bytes) -> None:
    async def test(connect: Connected) -> None:
        assert (await connect(head).answer()).endswith(b"OK")

    run(test)


def test_a_header_may_be_as_long_as_the_bound() -> None:
    async def test(connect: Connected) -> None:
        peer = connect(b"GET /ok HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (65536 - 60))
        await peer.send(b"\r\n\r\n")
        assert (await peer.answer()).endswith(b"OK")

    run(test)


def test_a_refused_head_waits_for_the_answers_before_it_and_ends_the_connection() -> None:
    async def test(connect: Connected) -> None:
        peer = connect(b"GET /wait?seconds=0.05 HTTP/1.1\r\nHost: x\r\n\r\nGET /ok HTTP/1.1\r\n\r\n" + GET)
        assert (await peer.answer()).endswith(b"waited")
        assert (await peer.rest()).startswith(b"HTTP/1.1 400 Bad Request: missing required Host header\r\n")

    run(test)


def test_a_client_that_is_still_sending_hears_why_its_head_was_refused() -> None:
    async def test(connect: Connected) -> None:
        peer = connect(b"POST /length HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n")
        await peer.send(b"x" * 2_000_000)
        assert (await peer.rest()).endswith(NO_HOST)

    run(test)


def test_upgrade_is_not_understood_and_ignored() -> None:
    async def test(connect: Connected) -> None:
        peer = connect(GET[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n" + GET)
        assert (await peer.answer()).endswith(b"OK")
        assert (await peer.answer()).endswith(b"OK")

    run(test)


def test_many_upgrades_at_once_are_ignored() -> None:
    async def test(connect: Connected) -> None:
        upgrade = GET.replace(b"Host: x", b"Host: x\r\nConnection: upgrade\r\nUpgrade: x")
        peer = connect(upgrade * 1200)
        for _ in range(1200):
            assert (await peer.answer()).endswith(b"OK")

    run(test)


def test_requests_are_not_read_while_others_wait() -> None:
    sent = 0

    async def test(connect: Connected) -> None:
        peer = connect()

        async def send() -> None:
            nonlocal sent
            while True:
                await peer.send(b"POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" * 100)
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            for _ in range(300):
                await peer.answer()
            nursery.cancel_scope.cancel()

    run(test)
    assert 3 < sent < 150


def test_client_that_has_finished_sending_gets_its_answers() -> None:
    async def test(connect: Connected) -> None:
        peer = connect()
        await peer.send(b"GET /wait?seconds=0.05 HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
        await peer.stream.send_eof()
        answers = await peer.rest()
        assert answers.count(b"HTTP/1.1 200 OK") == 2

    run(test)


def test_crash_leaves_the_connection_and_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test(connect: Connected) -> None:
        peer = connect(GET.replace(b"/ok", b"/crash") + GET)
        assert (await peer.answer()).endswith(b'{"message":"INTERNAL_ERROR"}')
        assert (await peer.answer()).endswith(b"OK")

    run(test)
    assert "panic in HTTP handler - boom" in caplog.text


def test_peer_that_vanishes_while_it_is_answered() -> None:
    async def test(connect: Connected) -> None:
        peer = connect(b"GET /wait?seconds=0.05 HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.sleep(0.01)
        await peer.stream.aclose()
        while connect.web.connections:  # noqa: ASYNC110 - nobody tells when
            await trio.sleep(0.01)
        assert (await connect(GET).answer()).endswith(b"OK")

    run(test)


def test_end_closes_the_idle_and_waits_for_the_busy() -> None:
    @jumping
    async def main() -> None:
        async with open_web(API) as web:
            connect = Connected(web)
            idle, busy = connect(GET), connect(b"GET /wait?seconds=0.1 HTTP/1.1\r\nHost: x\r\n\r\n")
            await idle.answer()
            await trio.sleep(0.05)  # on this clock: when the busy one has begun to wait
        with closing(connect):
            assert await idle.rest() == b""
            assert (await busy.rest()).endswith(b"waited")

    main()


def test_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqcommon.web.GRACE", 0.05)

    @jumping
    async def main() -> None:
        began = trio.current_time()
        async with open_web(API) as web:
            connect = Connected(web)
            peer = connect(b"GET /wait?seconds=60 HTTP/1.1\r\nHost: x\r\n\r\n")
            await trio.sleep(0.02)  # on this clock: when it has begun to wait
        with closing(connect):
            assert await peer.rest() == b""
        assert trio.current_time() - began < 5

    main()


def test_serve_accepts_and_stops_when_cancelled() -> None:
    async def main() -> None:
        with closing(bind("127.0.0.1:0")) as listener, trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(serve, API, [listener], budget=Budget(10, "HTTP")))
                client = socket.create_connection(listener.getsockname())
                peer = Peer(client)
                await peer.send(GET)
                assert (await peer.answer()).startswith(b"HTTP/1.1 200 OK")
                nursery.cancel_scope.cancel()
            async with peer.stream:
                assert await peer.rest() == b""

    trio.run(main)


@pytest.mark.parametrize("name", [None, "a:b", ""])  # "" lets the system choose one
def test_a_client_on_a_unix_socket_may_have_any_name(
    name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)  # a short path
    caplog.set_level(logging.INFO)

    async def main() -> None:
        client = socket.socket(socket.AF_UNIX)
        with closing(bind("server.sock")) as listener, closing(client), trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(serve, API, [listener], budget=Budget(10, "HTTP")))
                if name is not None:
                    client.bind(name)
                client.connect("server.sock")
                peer = Peer(client)
                await peer.send(GET)
                assert (await peer.answer()).endswith(b"OK")
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert "200 GET /ok (@)" in caplog.text


class Steps(trio.abc.Instrument):
    """Counts what the loop does."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


def test_idle_server_uses_no_processor_time() -> None:
    async def test(connect: Connected) -> None:
        await connect(GET).answer()
        await trio.sleep(1)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(3600)
        assert steps.count < 10

    run(test)


def test_a_peer_that_had_half_closed_before_it_was_taken_over_gets_its_answer() -> None:
    async def test(connect: Connected) -> None:
        ours, theirs = socket.socketpair()
        peer = Peer(ours)
        serve_socket(connect.web, theirs, GET, has_ended=True)
        assert (await peer.answer()).endswith(b"OK")
        assert await peer.rest() == b""
        ours.close()

    run(test)


class Secure:
    """What `take_over` needs from a `SecureHandler`."""

    has_ended = False
    inner: ProtocolHandler

    def common_name(self) -> str:
        return ""


def test_a_tls_peer_that_had_gone_without_a_goodbye_is_not_kept() -> None:
    async def test(connect: Connected) -> None:
        ours, theirs = socket.socketpair()
        with closing(ours), closing(theirs):
            connection = Connection(theirs, "127.0.0.1:5000")
            connection.ended = True
            secure = Secure()
            connect.web.take_over(connection, lambda: None, GET, secure=cast(SecureHandler, secure))
            assert secure.inner.is_closing
            secure.inner.abort()

    run(test)


def test_a_connection_that_has_gone_leaves_nothing_to_the_collector() -> None:
    async def test(connect: Connected) -> None:
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                peer = connect(GET)
                await peer.answer()
                await peer.stream.aclose()
                await trio.testing.wait_all_tasks_blocked()
            assert connect.web.connections == 0
            assert sum(type(it) is ProtocolHandler for it in gc.get_objects()) == 0
            assert sum(isinstance(it, HttpToolsProtocol) for it in gc.get_objects()) <= 1
        finally:
            gc.enable()

    run(test)
