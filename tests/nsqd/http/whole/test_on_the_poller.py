"""The fast path and the web server behind one listener, as in nsqd: real sockets, the real poller and broker."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic

import pytest
import trio

from nsqcommon.budget import Budget
from nsqcommon.net import bind
from nsqcommon.poller import Connection, Handler, Poller
from nsqcommon.web import linger, open_web, run_trio
from nsqd.broker.broker import Broker
from nsqd.http import NodeInfo, Publishing, QuickHttp, QuickRoutes, make_app
from nsqd.options import Options
from tests.nsqd.fake_broker import FakeStore, FakeTurn, binary_mpub, bodies, make_broker
from tests.nsqd.http.conftest import LIMITS, FakeSettings
from tests.nsqd.http.fake_history import no_history
from tests.support.client import TIMEOUT
from tests.support.leasing import leasing_of

PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
INFO = b"GET /info HTTP/1.1\r\nHost: x\r\n\r\n"


class PolledTurn(FakeTurn):
    def __init__(self, broker: Broker, flush: Callable[[], None]) -> None:
        super().__init__(broker)
        self.flush = flush

    def begin(self) -> float:
        return monotonic()  # the clock of the poller

    def take_time(self) -> float:
        return monotonic()

    def is_full(self) -> bool:
        return False

    def finish(self) -> None:
        super().finish()
        self.flush()


class Server:
    def __init__(self) -> None:
        self.store = FakeStore()
        self.broker = make_broker(self.store)
        self.publishing = Publishing(self.broker, replace(LIMITS, max_body=120_000), max_defer_ms=1000)
        self.poller = Poller(partial(PolledTurn, self.broker))
        self.turn = self.poller.turn
        self.app = make_app(
            self.broker,
            self.turn,
            FakeSettings(Options()),
            self.publishing,
            NodeInfo(hostname="h", tcp_port=0, http_port=0),
            start_drain=lambda *, stay, retire: True,
            is_draining=lambda: False,
            take_drain_back=lambda: True,
            run_trio=run_trio,
            reading=no_history(),
            leasing=leasing_of(self.broker),
            linger=linger,
        )

    async def run(
        self, listener: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        routes = QuickRoutes(self.broker, self.publishing)
        async with open_web(self.app, poller=self.poller) as web, trio.open_nursery() as nursery:

            def make(connection: Connection, wake: Callable[[], None]) -> Handler:
                def hand_off(received: bytes) -> None:
                    web.take_over(connection, wake, received)

                return QuickHttp(routes, hand_off=hand_off, wake=wake)

            nursery.start_soon(self.poller.run)
            nursery.start_soon(self.poller.accept, listener, make, Budget(100, "HTTP"))
            task_status.started()
            try:
                await trio.sleep(inf)
            finally:
                self.poller.close_all()


def run(test: Callable[[Server, tuple[str, int]], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server()
        with closing(bind("127.0.0.1:0")) as listener, trio.fail_after(TIMEOUT):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run, listener)
                await test(server, listener.getsockname())
                nursery.cancel_scope.cancel()

    trio.run(main)


async def talk(address: tuple[str, int], request: bytes) -> bytes:
    """Send everything, close our direction, and read to the end."""
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(request)
        await stream.send_eof()
        return b"".join([data async for data in stream])


def post(target: str, body: bytes, headers: str = "") -> bytes:
    return f"POST {target} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_both_ways_on_one_connection_in_order() -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        requests = [
            PING,
            post("/pub?topic=t", b"one"),
            post("/mpub?topic=t&binary=true", binary_mpub([b"two", b"three"])),
            INFO,  # from here on the application answers, not the fast path
            PING,
            post("/pub?topic=t", b"four"),
            post("/pub?topic=t", b""),
            post("/topic/delete?topic=u", b""),
        ]
        answers = await talk(address, b"".join(requests))
        assert [answer[:3] for answer in answers.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 6 + [b"400", b"404"]
        assert bodies(server.store, "t") == [b"one", b"two", b"three", b"four"]

    run(test)


def test_a_pipeline_that_has_to_give_way_is_answered_whole() -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        lines, pubs = 60_000 * b"x\n", b"".join(post(f"/pub?topic=t{number}", b"x") for number in range(800))
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(post("/mpub?topic=t", lines))
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 OK")
        assert len(bodies(server.store, "t")) == 60_000
        answers = await talk(address, pubs + INFO)
        assert answers.count(b"HTTP/1.1 200 OK") == 801

    run(test)


@pytest.mark.parametrize(
    "how", ["Content-Length: 10", "Expect: 100-continue\r\nContent-Length: 10", "Transfer-Encoding: chunked"]
)
@pytest.mark.parametrize("target", ["POST /pub?topic=t", "POST /mpub?topic=t", "PUT /config/log_level"])
def test_a_body_that_ends_too_early_is_an_error_that_can_be_seen(target: str, how: str) -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        answer = await talk(address, f"{target} HTTP/1.1\r\nHost: x\r\n{how}\r\n\r\n5\r\nh".encode())
        answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert b"\r\nConnection: close\r\n" in answer
        assert answer.endswith(b'\r\n\r\n{"message":"INTERNAL_ERROR"}')
        topic = server.broker.find("t")
        assert topic is None or topic.message_count == 0

    run(test)


@pytest.mark.parametrize(
    ("how", "status"), [("Content-Length: 20", b"413"), ("Expect: 100-continue\r\nContent-Length: 20", b"500")]
)
def test_a_binary_batch_that_ends_too_early_is_an_error_that_can_be_seen(how: str, status: bytes) -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        head = f"POST /mpub?topic=t&binary=true HTTP/1.1\r\nHost: x\r\n{how}\r\n\r\n".encode()
        answer = await talk(address, head + b"\0\0\0\1\0\0\0\5h")
        assert answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 " + status)
        topic = server.broker.find("t")
        assert topic is None or topic.message_count == 0

    run(test)


def test_a_body_that_nobody_waits_for_may_end_too_early() -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        answer = await talk(address, b"GET /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nh")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")

    run(test)


def without_date(answer: bytes) -> list[bytes]:
    return [line for line in answer.split(b"\r\n") if not line.startswith(b"Date: ")]


@pytest.mark.parametrize("request_", [
    PING,
    post("/pub?topic=t", b"x"),
    post("/pub?topic=t", b""),
    post("/pub?topic=!", b"x"),
    post("/pub?topic=t", b"x" * 101),
    post("/mpub?topic=t", b"a\nb"),
    post("/mpub?topic=t", b"x" * 501),
    post("/mpub?topic=t&binary=1", b"x"),
    post("/pub?topic=t", b"x", "Connection: close\r\n"),
])  # fmt: skip
def test_both_ways_give_the_same_bytes(request_: bytes) -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        quick = await talk(address, request_)
        info = await talk(address, INFO)
        slow = (await talk(address, INFO + request_))[len(info) :]
        assert without_date(quick) == without_date(slow)

    run(test)


def test_publish_in_chunks_or_on_demand_goes_through_the_application() -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        chunked = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        assert (await talk(address, chunked)).endswith(b"\r\n\r\nOK")
        expected = post("/pub?topic=t", b"def", "Expect: 100-continue\r\n")
        assert b"200 OK" in await talk(address, expected)
        assert bodies(server.store, "t") == [b"abc", b"def"]

    run(test)


def test_late_receipts_are_answered_when_they_settle() -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        server.store.hold = True
        async with trio.open_nursery() as nursery:
            answers: list[bytes] = []

            async def ask(request: bytes) -> None:
                answers.append(await talk(address, request))

            nursery.start_soon(ask, post("/pub?topic=t", b"quick"))
            nursery.start_soon(ask, INFO + post("/pub?topic=t", b"slow"))
            while len(server.store.receipts) < 2:  # noqa: ASYNC110 - nobody tells when
                await trio.sleep(0.01)
            assert answers == []
            server.store.settle()
            server.turn.finish()
        assert all(answer.endswith(b"\r\n\r\nOK") for answer in answers)

    run(test)


def test_refused_body_does_not_end_in_a_reset() -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(post("/pub?topic=t", b"x" * 2_000_000))
            answer = b"".join([data async for data in stream])
        assert answer.startswith(b"HTTP/1.1 413 Request Entity Too Large\r\n")
        assert answer.endswith(b'{"message":"MSG_TOO_BIG"}')

    run(test)


def test_garbage_gets_a_400() -> None:
    async def test(server: Server, address: tuple[str, int]) -> None:
        assert (await talk(address, PING + b"garbage")).endswith(b"\r\n\r\n400 Bad Request")

    run(test)
