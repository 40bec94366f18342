"""A producer on asyncio when the loop fails, not an nsqd."""

from __future__ import annotations

import asyncio

import pytest

from nsqclient import ConfigError, ConnectError, Stopped
from nsqclient.aio import open_producer

NOBODY = "127.0.0.1:1"
LIMIT = 30.0


def test_a_publish_hears_of_the_end_even_if_connecting_had_not_begun() -> None:
    async def test() -> None:
        async with open_producer(NOBODY) as producer:
            publish = asyncio.create_task(producer.publish("events", b"first"))
            await asyncio.sleep(0)  # the publish waits for a connection, and the task that connects has not run yet
        with pytest.raises(Stopped):
            await asyncio.wait_for(publish, LIMIT)

    asyncio.run(test())


def test_several_nsqds_that_fail_at_once_raise_one_error() -> None:
    """`except Stopped` and `except ConnectError` do not catch a group."""

    async def test() -> None:
        async with open_producer([NOBODY, "127.0.0.1:2"], strategy="all", retry="never") as producer:
            with pytest.raises(ConnectError):
                await producer.ping()
        with pytest.raises(Stopped):
            await producer.publish("events", b"late")

    asyncio.run(test())


def test_a_producer_without_room_for_a_single_publish_is_refused() -> None:
    async def test() -> None:
        with pytest.raises(ConfigError, match="invalid max_pending ! 0 < 1"):
            async with open_producer(NOBODY, max_pending=0):
                pass

    asyncio.run(test())
