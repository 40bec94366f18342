"""nsqclient.aio on uvloop, which taskiq's workers and many web servers use if it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from nsqclient import Config, aio
from tests.support.process import Nsqd

uvloop = pytest.importorskip("uvloop")

LIMIT = 60.0


def in_uvloop(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, LIMIT))


def test_messages_go_out_and_come_in(nsqd: Nsqd, topic: str) -> None:
    address = "{}:{}".format(*nsqd.tcp)
    bodies = [b"small", bytes(1_000_000)]  # the second one fills the socket's buffer, so writing pauses

    async def round_trip() -> None:
        async with aio.open_producer(address) as producer:
            await producer.publish_many(topic, bodies)
        async with aio.open_consumer(topic, "c", nsqd=address, config=Config(max_in_flight=2)) as consumer:
            got = []
            async for message in consumer:
                got.append(message.body)
                message.finish()
                if len(got) == len(bodies):
                    consumer.stop()
        assert sorted(got) == sorted(bodies)

    in_uvloop(round_trip())
