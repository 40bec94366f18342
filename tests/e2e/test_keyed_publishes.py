"""nsqclient's default retry publishes everything once, whatever happens to nsqd and to connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest
import trio

import nsqclient
from nsqclient import aio, sync
from tests.e2e.keyed_kill9 import run
from tests.support.client import TIMEOUT
from tests.support.lengths import sized
from tests.support.process import Nsqd

PATIENCE: Final = 100.0  # seconds


@pytest.mark.parametrize("colour", ["trio", "aio"])
@pytest.mark.parametrize(("kills", "cuts"), [(8, 0), (0, sized(short=15, long=40))], ids=["kills", "cuts"])
def test_what_is_published_while_nsqd_dies_is_stored_once(tmp_path: Path, colour: str, kills: int, cuts: int) -> None:
    run(tmp_path, kills=kills, cuts=cuts, seed=7, colour=colour, tell=print)


def test_a_plain_call_may_name_its_publish(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd, sync.producer(f"127.0.0.1:{nsqd.tcp[1]}") as producer:
        for _ in range(2):
            producer.publish("t", b"one", key="order-7", timeout=PATIENCE)
            producer.publish_many("t", [b"two", b"three"], key="order-8", timeout=PATIENCE)
        assert nsqd.topic("t")["message_count"] == 3


@contextmanager
def hanging_nsqd() -> Iterator[str]:
    """Run an nsqd that stores the first publish, breaks the connection, and never says a word about another publish."""
    server = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        for number in count():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            kept.append(connection)
            connection.recv(65536)  # "  V2" and IDENTIFY
            terms = b'{"max_rdy_count":2500,"version":"1.3.0","msg_timeout":60000,"extensions":["keys"]}'
            connection.sendall(struct.pack(">ii", len(terms) + 4, 0) + terms)
            if not number:
                connection.recv(65536)  # PUB
                connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in kept:
            connection.close()
        thread.join(TIMEOUT)


async def publish_by_trio(address: str) -> None:
    async with nsqclient.open_producer(address, retry_timeout=1.0) as producer:
        await producer.publish("t", b"one")


async def publish_by_asyncio(address: str) -> None:
    async with aio.open_producer(address, retry_timeout=1.0) as producer:
        await producer.publish("t", b"one")


def publish_by_a_plain_call(address: str) -> None:
    with sync.producer(address, retry_timeout=1.0) as producer:
        producer.publish("t", b"one", timeout=30)


@pytest.mark.parametrize("publish", [
    lambda address: trio.run(publish_by_trio, address),
    lambda address: asyncio.run(publish_by_asyncio(address)),
    publish_by_a_plain_call,
], ids=["trio", "asyncio", "sync"])  # fmt: skip
def test_an_nsqd_that_hangs_does_not_hold_a_publish_for_longer_than_it_may(publish: Callable[[str], None]) -> None:
    with hanging_nsqd() as address:
        began = time.monotonic()
        with pytest.raises(nsqclient.OutcomeUnknown) as caught:
            publish(address)
        assert caught.value.key
        assert time.monotonic() - began < 30
