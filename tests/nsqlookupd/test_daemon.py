"""nsqlookupd over real sockets: waiting lookups are answered, and peers that leave or misbehave harm no other."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from random import Random
from typing import Any, Final
from unittest.mock import patch

import trio

from bench.ports import take_port
from nsqcommon.options import MILLISECOND
from nsqcommon.wire.lookup import ReplyReader, encode_command, identify_body
from nsqlookupd.daemon import Listening, run
from nsqlookupd.options import Options
from nsqlookupd.tcp import LookupClient
from tests.support.jumping import jumping_with

LIMIT: Final = 100.0  # for any test: what is waited for comes in milliseconds, and on a busy machine in seconds


def limited(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run_it() -> None:
        async def with_limit() -> None:
            with trio.fail_after(LIMIT):
                await test()

        trio.run(with_limit)

    return run_it


# Nothing is silent because the machine is busy.
jumping = jumping_with("nsqcommon.poller.monotonic", "nsqlookupd.tcp.monotonic", "nsqlookupd.turn.monotonic")


class Nsqd:
    """A connection that registers."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._reader = ReplyReader(1 << 20)

    async def ask(self, *words: str, body: bytes | None = None) -> bytes:
        await self.stream.send_all(encode_command(*words, body=body))
        return await self.reply()

    async def reply(self) -> bytes:
        """Return the next reply, or b"" if the other side has closed."""
        while (reply := self._reader.next_reply()) is None:
            data = await self.stream.receive_some()
            if not data:
                return b""
            self._reader.receive(data)
        return reply

    async def identify(self, host: str, tcp_port: int = 4150) -> None:
        body = identify_body(
            broadcast_address=host,
            hostname=host,
            http_port=4151,
            tcp_port=tcp_port,
            topology_region="",
            topology_zone="",
            version="1.3.0",
            node="n1",
        )
        assert json.loads(await self.ask("IDENTIFY", body=body))["version"] == "1.3.0"


class Answer:
    def __init__(self, head: str, body: bytes) -> None:
        self.status = int(head.split(" ")[1])
        self.index = next((line[13:] for line in head.split("\r\n") if line.startswith("X-Nsq-Index: ")), "")
        self.body = body

    @property
    def hosts(self) -> list[str]:
        return [it["broadcast_address"] for it in json.loads(self.body)["producers"]]

    @property
    def states(self) -> dict[str, str | None]:
        return {it["broadcast_address"]: it.get("state") for it in json.loads(self.body)["producers"]}


class Lookupd:
    def __init__(self, listening: Listening, stop: trio.Event) -> None:
        self.listener = listening.tcp
        self.tcp = self.listener.getsockname()
        self.http = listening.http.getsockname()
        self.stop = stop
        self._streams: list[trio.SocketStream] = []

    async def connect(self, magic: bytes = b"  V1") -> Nsqd:
        stream = await trio.open_tcp_stream(*self.tcp)
        self._streams.append(stream)
        await stream.send_all(magic)
        return Nsqd(stream)

    def close(self) -> None:
        for stream in self._streams:
            stream.socket.close()

    async def nsqd(self, host: str, *topics: str, tcp_port: int = 4150) -> Nsqd:
        nsqd = await self.connect()
        await nsqd.identify(host, tcp_port)
        for topic in topics:
            assert await nsqd.ask("REGISTER", topic) == b"OK"
        return nsqd

    async def request(self, target: str, method: str = "GET") -> Answer:
        stream = await trio.open_tcp_stream(*self.http)
        async with stream:
            await stream.send_all(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join([piece async for piece in stream])
        head, _, body = answer.partition(b"\r\n\r\n")
        return Answer(head.decode(), body)

    async def metric(self, name: str) -> int:
        lines = (await self.request("/metrics")).body.decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"nsqlookupd_{name} "))

    async def wait_for_metric(self, name: str, value: int) -> None:
        while await self.metric(name) != value:  # noqa: ASYNC110  # what the daemon counts is no event of ours
            await trio.sleep(0.005)


@asynccontextmanager
async def lookupd(**options: Any) -> AsyncIterator[Lookupd]:
    # The nodes of most tests have only names.
    given = {"dial_back": False} | options
    chosen = Options(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", broadcast_address="here", **given)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        listening = await nursery.start(partial(run, chosen, wait_for_shutdown=stop.wait))
        server = Lookupd(listening, stop)
        try:
            yield server
        finally:
            server.close()
            stop.set()


class Waiter:
    """A /lookup that waits in a task of its own."""

    def __init__(self, server: Lookupd, target: str) -> None:
        self._server = server
        self._target = target
        self._done = trio.Event()
        self._answer: Answer

    async def run(self) -> None:
        self._answer = await self._server.request(self._target)
        self._done.set()

    async def answer(self) -> Answer:
        await self._done.wait()
        return self._answer


@asynccontextmanager
async def waiting(server: Lookupd, target: str) -> AsyncIterator[Waiter]:
    """Send the request before the block begins."""
    waiter = Waiter(server, target)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter.run)
        await server.wait_for_metric("waiting_lookups", 1)
        yield waiter


# Waiting


@limited
async def test_waiting_lookup_is_answered_when_the_topic_appears() -> None:
    async with lookupd() as server, waiting(server, "/lookup?topic=t&wait=60s") as waiter:
        await server.nsqd("a", "other", "t")
        answer = await waiter.answer()
        assert (answer.status, answer.hosts) == (200, ["a"])


@limited
async def test_waiting_lookup_is_answered_when_a_producer_comes_and_when_it_goes() -> None:
    async with lookupd() as server:
        await server.nsqd("a", "t")
        index = (await server.request("/lookup?topic=t")).index
        async with waiting(server, f"/lookup?topic=t&wait=60s&index={index}") as waiter:
            second = await server.nsqd("b", "t")
            answer = await waiter.answer()
            assert answer.hosts == ["a", "b"]
        async with waiting(server, f"/lookup?topic=t&wait=60s&index={answer.index}") as waiter:
            await second.stream.aclose()
            assert (await waiter.answer()).hosts == ["a"]


@jumping
async def test_waiting_lookup_is_answered_when_a_producer_falls_silent() -> None:
    async with lookupd(inactive_producer_timeout=300 * MILLISECOND) as server:
        await server.nsqd("a", "t")
        index = (await server.request("/lookup?topic=t")).index
        answer = await server.request(f"/lookup?topic=t&wait=60s&index={index}")
        assert (answer.status, answer.hosts) == (200, [])


@jumping
async def test_waiting_lookup_is_answered_when_a_tombstone_ends() -> None:
    async with lookupd(tombstone_lifetime=200 * MILLISECOND) as server:
        await server.nsqd("a", "t")
        assert (await server.request("/topic/tombstone?topic=t&node=a:4151", "POST")).status == 200
        hidden = await server.request("/lookup?topic=t")
        assert hidden.hosts == []
        assert (await server.request(f"/lookup?topic=t&wait=60s&index={hidden.index}")).hosts == ["a"]


@limited
async def test_waiting_for_nodes_is_answered_when_one_comes_changes_its_state_and_goes() -> None:
    async with lookupd() as server:
        async with waiting(server, "/nodes?wait=60s") as waiter:
            node = await server.nsqd("a")
            answer = await waiter.answer()
            assert answer.states == {"a": None}
        async with waiting(server, f"/nodes?wait=60s&index={answer.index}") as waiter:
            assert await node.ask("REGISTER", "t") == b"OK", "which nobody waits for"
            assert await node.ask("PING", "full") == b"OK"
            answer = await waiter.answer()
            assert answer.states == {"a": "full"}
        assert (await server.request("/lookup?topic=t")).states == {"a": "full"}
        async with waiting(server, f"/nodes?wait=60s&index={answer.index}") as waiter:
            assert await node.ask("PING") == b"OK"
            answer = await waiter.answer()
            assert answer.states == {"a": None}
        async with waiting(server, f"/nodes?wait=60s&index={answer.index}") as waiter:
            await node.stream.aclose()
            answer = await waiter.answer()
            assert (answer.status, answer.hosts) == (200, [])


@jumping
async def test_waiting_for_nodes_is_answered_when_one_falls_silent() -> None:
    async with lookupd(inactive_producer_timeout=300 * MILLISECOND) as server:
        await server.nsqd("a")
        index = (await server.request("/nodes")).index
        answer = await server.request(f"/nodes?wait=60s&index={index}")
        assert (answer.status, answer.hosts) == (200, [])


@jumping
async def test_nodes_that_come_together_share_an_answer() -> None:
    async with lookupd() as server, waiting(server, "/nodes?wait=60s") as waiter:
        for host in "abcdef":
            await server.nsqd(host)
        assert len((await waiter.answer()).hosts) > 1


@limited
async def test_who_waits_for_nodes_at_the_stop_is_told_the_truth() -> None:
    async with lookupd() as server:
        await server.nsqd("a")
        index = (await server.request("/nodes")).index
        async with waiting(server, f"/nodes?wait=60s&index={index}") as waiter:
            server.stop.set()
            assert (await waiter.answer()).hosts == ["a"]


@limited
async def test_who_waits_for_nodes_hears_that_one_cannot_be_reached() -> None:
    async with lookupd(dial_back=True) as server:
        node = await server.nsqd("127.0.0.1", tcp_port=take_port())
        answer = await server.request("/nodes?wait=60s")
        while "reachable" not in (entry := json.loads(answer.body)["producers"][0]):
            answer = await server.request(f"/nodes?wait=60s&index={answer.index}")
        assert (entry["reachable"], "connection refused" in entry["unreachable"]) == (False, True)
        assert (await node.ask("PING")).startswith(b"OK unreachable dial 127.0.0.1:")


@limited
async def test_a_node_is_connected_back_to_once_and_told_nothing_when_that_worked() -> None:
    visits = 0

    async def visited(stream: trio.SocketStream) -> None:
        nonlocal visits
        visits += 1
        assert await stream.receive_some() == b"", "nothing is said"
        seen.set()

    seen = trio.Event()
    async with trio.open_nursery() as nursery, lookupd(dial_back=True) as server:
        (listener,) = await nursery.start(partial(trio.serve_tcp, visited, 0, host="127.0.0.1"))
        node = await server.nsqd("localhost", "t", tcp_port=listener.socket.getsockname()[1])
        await seen.wait()
        assert await node.ask("PING") == b"OK"
        assert b"reachable" not in (await server.request("/nodes")).body
        nursery.cancel_scope.cancel()
    assert visits == 1


@limited
async def test_wait_ends_with_the_usual_answer() -> None:
    async with lookupd(max_lookup_wait=20 * MILLISECOND) as server:
        assert (await server.request("/lookup?topic=t&wait=60s")).status == 404
        assert (await server.request("/lookup?topic=t&wait=1ms")).status == 404


@limited
async def test_client_that_leaves_waits_no_more() -> None:
    async with lookupd() as server:
        stream = await trio.open_tcp_stream(*server.http)
        await stream.send_all(b"GET /lookup?topic=t&wait=60s HTTP/1.1\r\nHost: x\r\n\r\n")
        await server.wait_for_metric("waiting_lookups", 1)
        await stream.aclose()
        await server.wait_for_metric("waiting_lookups", 0)


@limited
async def test_who_waits_at_the_stop_is_told_the_truth() -> None:
    async with lookupd() as server:
        await server.nsqd("a", "t")
        index = (await server.request("/lookup?topic=t")).index
        async with waiting(server, f"/lookup?topic=t&wait=60s&index={index}") as waiter:
            server.stop.set()
            assert (await waiter.answer()).hosts == ["a"]


# Connections


@limited
async def test_stop_closes_connections() -> None:
    async with lookupd() as server:
        nsqd = await server.nsqd("a", "t")
        server.stop.set()
        assert await nsqd.reply() == b""


@limited
async def test_address_that_nsqd_is_told_is_the_real_one() -> None:
    async with lookupd() as server:
        nsqd = await server.connect()
        body = b'{"broadcast_address":"a","tcp_port":1,"http_port":1,"version":"1"}'
        told = json.loads(await nsqd.ask("IDENTIFY", body=body))
        expected = {"broadcast_address": "here", "tcp_port": server.tcp[1], "http_port": server.http[1]}
        assert expected.items() <= told.items()


@limited
async def test_error_is_read_before_the_end() -> None:
    async with lookupd() as server:
        nsqd = await server.nsqd("a", "t")
        assert await nsqd.ask("NOP") == b"E_INVALID invalid command NOP"
        assert await nsqd.reply() == b""
        await server.wait_for_metric("connections", 0)
        assert await server.metric("producers") == 0


@limited
async def test_half_closed_peer_gets_its_answers() -> None:
    async with lookupd() as server:
        nsqd = await server.connect()
        await nsqd.stream.send_all(b"PING\n" * 1000 + b"IDENTIFY\n\0\0")
        await nsqd.stream.send_eof()
        assert [await nsqd.reply() for _ in range(1000)] == [b"OK"] * 1000
        assert await nsqd.reply() == b"E_BAD_BODY IDENTIFY failed to read body size"
        assert await nsqd.reply() == b""


@limited
async def test_lookup_is_answered_while_thousands_of_commands_wait() -> None:
    async with lookupd() as server:
        nsqd = await server.nsqd("a")
        await nsqd.stream.send_all(b"".join(b"REGISTER t%d c\n" % number for number in range(10_000)))
        assert (await server.request("/lookup?topic=t0&wait=10s")).hosts == ["a"]
        assert await server.metric("producers") < 10_000
        assert [await nsqd.reply() for _ in range(10_000)] == [b"OK"] * 10_000


@limited
async def test_peer_that_never_reads_is_not_read_from_for_ever() -> None:
    pings = 0

    async def ping(stream: trio.SocketStream) -> None:
        nonlocal pings
        while True:
            await stream.send_all(b"PING\n" * 1000)
            pings += 1000

    # It would be dropped after ten seconds, and a busy machine may need them for the rest of the test.
    with patch.object(LookupClient, "write_timeout", 10 * LIMIT):
        async with lookupd() as server, trio.open_nursery() as nursery:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                server.listener.setsockopt(socket.SOL_SOCKET, option, 65536)  # and so for what it accepts
            nsqd = await server.nsqd("a")
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                nsqd.stream.setsockopt(socket.SOL_SOCKET, option, 65536)
            nursery.start_soon(ping, nsqd.stream)
            before = -1
            while pings > before:
                assert pings < 1_000_000, "several times what it may keep for a peer"
                before = pings
                for _ in range(5000):  # turns of the loop, of which a daemon that reads needs few for a thousand pings
                    await trio.lowlevel.checkpoint()
            assert await server.metric("connections") == 1
            nursery.cancel_scope.cancel()


@limited
async def test_noise_leaves_no_connection_behind() -> None:
    random = Random(5)
    async with lookupd() as server:
        for _ in range(100):
            nsqd = await server.connect(random.choice([b"  V1", b"  V1IDENTIFY\n", b"", b"GET / HTTP/1.1\r\n"]))
            try:
                await nsqd.stream.send_all(random.randbytes(random.randrange(200)))
            except trio.BrokenResourceError:
                pass
            await nsqd.stream.aclose()
        await server.wait_for_metric("connections", 0)
        assert (await server.metric("peers"), await server.metric("producers")) == (0, 0)
