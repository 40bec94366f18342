"""Limits of nsqlookupd: connections, silence, and the cost of a bug of ours; with and without TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path

import pytest
import trio

from nsqcommon.handshake import TlsServer
from nsqcommon.net import bind
from nsqcommon.streams.tls import TlsLayer
from nsqcommon.wire.lookup import PeerAddress, encode_command
from nsqlookupd.registry import Peer, Registration, Registry
from nsqlookupd.tcp import Clients, ConnectionLimits
from tests.support.certificates import Certificates, make_certificates
from tests.support.jumping import jumping_with

SILENCE = 60.0
OK = b"\0\0\0\2OK"
ME = b'{"broadcast_address":"a","hostname":"a","http_port":1,"tcp_port":2,"version":"1.3.0"}'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Lookupd:
    def __init__(self, registry: Registry, clients: Clients, port: int, authority: Path, *, is_tls: bool) -> None:
        self._is_tls = is_tls
        self.registry = registry
        self.clients = clients
        self._port = port
        self._authority = authority

    async def connect(self) -> trio.abc.Stream:
        if not self._is_tls:
            return await trio.open_tcp_stream("127.0.0.1", self._port)
        context = ssl.create_default_context(cafile=self._authority)
        stream = await trio.open_ssl_over_tcp_stream("127.0.0.1", self._port, ssl_context=context)
        await stream.do_handshake()
        return stream

    async def wait_for_connections(self, count: int) -> None:
        while len(self.clients) != count:  # noqa: ASYNC110  # what it counts is no event of ours
            await trio.sleep(0.005)


Test = Callable[[Lookupd], Awaitable[None]]


def both(*, most: int = 10, silence: float = inf) -> Callable[[Test], object]:
    def decorate(test: Test) -> object:
        @pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
        def run(is_tls: bool, certificates: Certificates) -> None:
            @jumping_with("nsqcommon.poller.monotonic", "nsqlookupd.tcp.monotonic", "nsqlookupd.turn.monotonic")
            async def limited() -> None:
                async with lookupd(ConnectionLimits(most=most, silence=silence), certificates, is_tls=is_tls) as it:
                    await test(it)

            limited()

        return run

    return decorate


@asynccontextmanager
async def lookupd(limits: ConnectionLimits, certificates: Certificates, *, is_tls: bool) -> AsyncIterator[Lookupd]:
    registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
    address = PeerAddress("127.0.0.1", "h", 4161, 4160, "1.3.0")
    tls = None
    if is_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        tls = TlsServer(partial(TlsLayer, context, server_side=True), clock=trio.current_time)
    clients = Clients(registry, address, limits, tls)
    with bind("127.0.0.1:0") as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(clients.run)
            nursery.start_soon(clients.accept, listener)
            yield Lookupd(registry, clients, listener.getsockname()[1], certificates.authority, is_tls=is_tls)
            nursery.cancel_scope.cancel()


async def read(stream: trio.abc.Stream, size: int) -> bytes:
    """Read this many bytes; fewer only if the connection has ended."""
    got = b""
    try:
        while len(got) < size and (piece := await stream.receive_some()):
            got += piece
    except trio.BrokenResourceError:
        pass
    return got


async def ask(stream: trio.abc.Stream, commands: bytes, replies: bytes) -> None:
    await stream.send_all(commands)
    assert await read(stream, len(replies)) == replies


async def identify(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"  V1" + encode_command("IDENTIFY", body=ME))
    assert b"1.3.0" in await read(stream, 10)


@both(silence=SILENCE)
async def test_who_never_says_who_it_is_is_dropped_after_a_long_silence(it: Lookupd) -> None:
    silent, pinging = await it.connect(), await it.connect()
    await ask(pinging, b"  V1PING\n", OK)
    async with silent, pinging:
        assert await read(silent, 1) == b""
        assert await read(pinging, 1) == b""
        await it.wait_for_connections(0)


@both(silence=SILENCE)
async def test_who_has_said_so_may_be_silent_for_ever(it: Lookupd) -> None:
    async with await it.connect() as stream:
        await identify(stream)
        await trio.sleep(3 * SILENCE)
        await ask(stream, b"PING\n", OK)


@both(most=2)
async def test_more_connections_than_there_may_be_wait(it: Lookupd) -> None:
    first, second = await it.connect(), await it.connect()
    async with first, second:
        await ask(first, b"  V1PING\n", OK)
        await ask(second, b"  V1PING\n", OK)
        async with trio.open_nursery() as nursery:

            async def third() -> None:
                async with await it.connect() as stream:
                    await ask(stream, b"  V1PING\n", OK)

            nursery.start_soon(third)
            await trio.sleep(SILENCE)
            assert len(it.clients) == 2
            await trio.aclose_forcefully(first)


@both()
async def test_a_bug_of_ours_costs_one_connection(it: Lookupd) -> None:
    register = it.registry.register

    def broken(peer: Peer, topic_name: str, channel_name: str = "") -> list[Registration]:
        if topic_name == "boom":
            raise RuntimeError("boom")
        return register(peer, topic_name, channel_name)

    it.registry.register = broken  # type: ignore[method-assign]
    victim, other = await it.connect(), await it.connect()
    async with other:
        await identify(victim)
        await identify(other)
        await ask(other, b"REGISTER u\n", OK)
        # So many that the last ones run from the backlog.
        await victim.send_all(b"REGISTER t\n" * 5000 + b"REGISTER boom\n")
        await read(victim, 1 << 20)
        await trio.aclose_forcefully(victim)
        await it.wait_for_connections(1)
        await ask(other, b"PING\n", OK)
        assert (it.registry.snapshot().peers, it.registry.snapshot().producers) == (1, 1)


def test_the_kernel_asks_after_machines_that_are_silent(certificates: Certificates) -> None:
    async def test() -> None:
        async with lookupd(ConnectionLimits(most=1, silence=1), certificates, is_tls=False) as it, await it.connect():
            await it.wait_for_connections(1)
            (connection,) = it.clients.poller._connections.values()
            assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15

    trio.run(test)
