"""A client dials from the address that you give it, in every colour."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import trio

import nsqclient
from nsqclient import ConnectError, aio, sync
from nsqclient.blocking import BlockingProducer, given_nodes
from nsqclient.core.config import Config
from tests.support.process import Nsqd, eventually

OURS = "127.0.0.9"


def on_trio(address: str, topic: str, config: Config) -> None:
    async def publish() -> None:
        async with nsqclient.open_producer(address, config=config, connect="require") as producer:
            await producer.publish(topic, b"x")

    trio.run(publish)


def on_asyncio(address: str, topic: str, config: Config) -> None:
    async def publish() -> None:
        async with aio.open_producer(address, config=config, connect="require") as producer:
            await producer.publish(topic, b"x")

    asyncio.run(publish())


def in_plain_calls(address: str, topic: str, config: Config) -> None:
    with sync.producer(address, config=config, connect="require") as producer:
        producer.publish(topic, b"x")


def without_a_loop(address: str, topic: str, config: Config) -> None:
    producer = BlockingProducer(given_nodes([address]), config=config)
    producer.publish(topic, b"x")
    producer.close()


@pytest.mark.parametrize("publish", [on_trio, on_asyncio, in_plain_calls, without_a_loop])
def test_it_dials_from_its_local_address(nsqd: Nsqd, topic: str, publish: Callable[[str, str, Config], None]) -> None:
    address = f"127.0.0.1:{nsqd.tcp[1]}"
    before = nsqd.log.count(f"TCP: new client({OURS}:")
    publish(address, topic, Config(local_addr=f"{OURS}:0"))
    eventually(lambda: nsqd.log.count(f"TCP: new client({OURS}:") == before + 1)
    with pytest.raises(ConnectError, match="only port 0"):
        publish(address, topic, Config(local_addr=f"{OURS}:1"))
