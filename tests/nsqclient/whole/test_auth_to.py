"""With `auth_to` the secret goes only to the nsqds that it names, whatever nsqlookupd lists."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio

import nsqclient
from nsqclient import AuthError, Config, ConfigError, aio
from nsqcommon.wire.frames import OK_FRAME, response_frame
from tests.support.json_server import JsonServer

SECRET = "open sesame"
Run = Callable[[Callable[[], Awaitable[None]]], None]


class HostileNsqd:
    """Demands AUTH of every client, and keeps what they send."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                while data := self._received(connection):
                    self.heard += data
                    if b"IDENTIFY" in data:
                        connection.sendall(response_frame(b'{"auth_required": true}'))
                    elif b"AUTH" in data or b"PUB" in data:
                        connection.sendall(OK_FRAME)

    def _received(self, connection: socket.socket) -> bytes:
        try:
            return connection.recv(4096)
        except OSError:
            return b""

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def hostile() -> Iterator[HostileNsqd]:
    it = HostileNsqd()
    yield it
    it.close()


def in_trio(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(30):
            await test()

    trio.run(limited)


def in_asyncio(test: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(asyncio.wait_for(test(), 30))


on_each_loop = pytest.mark.parametrize(
    ("library", "run"), [(nsqclient, in_trio), (aio, in_asyncio)], ids=["trio", "asyncio"]
)


@on_each_loop
@pytest.mark.parametrize("auth_to", [("10.0.0.0/8",), ("nsqd1*",), ("127.0.0.1:1",), ("127.0.0.*.example",)])
def test_nobody_else_hears_it(hostile: HostileNsqd, library: Any, run: Run, auth_to: tuple[str, ...]) -> None:
    config = Config(auth_secret=SECRET, auth_to=auth_to)

    async def test() -> None:
        async with library.open_producer(f"127.0.0.1:{hostile.port}", config=config) as producer:
            with pytest.raises(AuthError, match="is not in auth_to"):
                await producer.publish("t", b"one")

    run(test)
    assert b"IDENTIFY" in hostile.heard
    assert SECRET.encode() not in hostile.heard


@on_each_loop
@pytest.mark.parametrize("auth_to", [(), ("127.0.0.0/8",), ("10.0.0.0/8", "localhost")])
def test_who_is_named_does_and_so_does_everybody_by_default(
    hostile: HostileNsqd, library: Any, run: Run, auth_to: tuple[str, ...]
) -> None:
    config = Config(auth_secret=SECRET, auth_to=auth_to)
    name = "localhost" if "localhost" in auth_to else "127.0.0.1"

    async def test() -> None:
        async with library.open_producer(f"{name}:{hostile.port}", config=config) as producer:
            await producer.publish("t", b"one")

    run(test)
    assert SECRET.encode() in hostile.heard


@on_each_loop
def test_an_nsqd_that_an_nsqlookupd_lists_is_no_exception(hostile: HostileNsqd, library: Any, run: Run) -> None:
    listed = {"broadcast_address": "127.0.0.1", "tcp_port": hostile.port, "http_port": 1}
    config = Config(auth_secret=SECRET, auth_to=("nsqd-*.example",), lookupd_authorization=False)
    with JsonServer(lambda path, arguments: {"producers": [listed]}) as lookupd:

        async def test() -> None:
            consumer = library.open_consumer("t", "c", lookupd=lookupd.address, config=config)
            with pytest.raises(AuthError, match="is not in auth_to"):
                async with consumer as messages:
                    await anext(messages)

        run(test)
    assert SECRET.encode() not in hostile.heard


def test_what_is_neither_a_network_nor_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"invalid auth_to ! '10\.0\.0' is neither a network"):
        Config(auth_to=("10.0.0",))


def test_tools_write_it_with_commas() -> None:
    config = Config.from_options({"auth-to": "10.0.0.0/8, nsqd-*.example"})
    assert config.auth_to == ("10.0.0.0/8", "nsqd-*.example")
