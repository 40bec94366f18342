"""How long a peer may leave unread what it was sent, or not answer at all, on asyncio and a clock that jumps."""

from __future__ import annotations

import asyncio
import selectors
import socket
from typing import Any, cast

import pytest

from nsqclient import Config, ConfigError, ConnectError, aio
from nsqclient.aio import AsyncioLink, OnAsyncio, dial
from nsqclient.testing import MemoryNSQD

SENT = 200_000


class JumpingSelector(selectors.SelectSelector):
    """A selector that does not wait: if nothing is ready, the clock moves on."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nobody waits for a time"
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


class Connection:
    """A connection that has a lot to send, once."""

    finished = False
    was_written = False

    def __init__(self) -> None:
        self.left = bytes(SENT)

    def bytes_to_send(self) -> bytes:
        data, self.left = self.left, b""
        return data

    def written(self, now: float) -> None:
        self.was_written = True


def test_a_peer_that_reads_slowly_is_kept_and_one_that_stops_is_not() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        theirs.setblocking(False)
        _, link = await loop.create_connection(lambda: AsyncioLink(Config(write_timeout=1.0)), sock=ours)
        connection = Connection()
        link.attach(cast(Any, connection))
        with theirs:
            heard = 0
            while heard < SENT:
                await asyncio.sleep(0.9)
                piece = await loop.sock_recv(theirs, SENT)
                assert piece, link.error
                heard += len(piece)
            assert loop.time() > 10
            assert not link.ended.is_set()
            assert connection.was_written

            connection.left = bytes(SENT)
            link.wake()
            stopped_at = loop.time()
            await link.ended.wait()
            assert str(link.error) == "IO error - write: i/o timeout"
            assert 1.0 <= loop.time() - stopped_at < 2.1

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(test())


class SilentLoop(JumpingLoop):
    """A loop on a machine that hears no answer to its attempts to connect."""

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(3600)


def test_a_connect_takes_no_longer_than_dial_timeout() -> None:
    async def test() -> None:
        with pytest.raises(ConnectError, match="dial nsqd:4150: i/o timeout"):
            await dial("nsqd:4150", Config(dial_timeout=3))
        assert 3 <= asyncio.get_running_loop().time() < 4

    with asyncio.Runner(loop_factory=SilentLoop) as runner:
        runner.run(test())


def test_what_connects_on_trio_is_refused_by_its_name() -> None:
    with pytest.raises(
        ConfigError, match=r"memory-nsqd-\d+:4150 is for trio: nsqclient.aio connects to addresses only"
    ):
        aio.open_consumer("t", "c", nsqd=cast(Any, MemoryNSQD()))
    with pytest.raises(ConfigError, match="for trio"):
        aio.open_producer(["127.0.0.1:4150", cast(Any, MemoryNSQD())])


def test_woken_task_that_is_cancelled_wakes_another() -> None:
    """On trio, a task that was woken is not cancelled before it runs."""

    async def test() -> None:
        lot = OnAsyncio().parking_lot()
        first, second, third = [asyncio.create_task(lot.park()) for _ in range(3)]
        await asyncio.sleep(0)
        lot.unpark()
        first.cancel()
        await second
        lot.unpark_all()
        await third

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(test())


def test_a_request_asks_for_a_connection_of_its_own() -> None:
    asked = b""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            got = await aio.exchange("GET", "127.0.0.1", port, "/lookup?topic=t", headers=[("Accept", "a")])
            assert (got.status, got.body) == (200, b"{}")
            lines = [b"GET /lookup?topic=t HTTP/1.1", b"Host: 127.0.0.1:%d" % port, b"Connection: close", b"Accept: a"]
            assert asked.split(b"\r\n") == [*lines, b"", b""]

    asyncio.run(test())
