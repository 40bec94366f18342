"""Headers from a producer to a consumer, with nsqds in memory."""

from __future__ import annotations

import pytest
import trio

from nsqclient import Unsupported, open_consumer, open_producer
from nsqclient.testing import MemoryNSQD
from tests.support.jumping import jumping

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@jumping
async def test_each_message_comes_with_its_headers() -> None:
    async with MemoryNSQD() as server:
        async with open_producer(server) as producer:
            await producer.publish("t", b"one", headers={"traceparent": TRACE, "raw": b"\xff"})
            await producer.publish("t", b"plain", headers={})
            await producer.publish("t", b"later", delay=1, headers={"n": "1"})
            await producer.publish_many("t", [b"m1", b"m2"], headers=[{"n": "2"}, {}])
            await (await producer.submit("t", b"last", headers={"n": "3"})).wait()
        found: dict[bytes, dict[str, bytes]] = {}
        async with open_consumer("t", "c", nsqd=[server]) as consumer:
            with trio.move_on_after(60):
                async for message in consumer:
                    found[message.body] = dict(message.headers)
                    message.finish()
        assert found == {
            b"one": {"traceparent": TRACE.encode(), "raw": b"\xff"},
            b"plain": {},
            b"later": {"n": b"1"},
            b"m1": {"n": b"2"},
            b"m2": {},
            b"last": {"n": b"3"},
        }
        said = [it.partition(" ")[0] for it in server.said() if "PUB" in it]
        assert said == ["PUB", "PUB", "DPUB", "MPUB", "PUB"]


@jumping
async def test_each_message_comes_with_its_group() -> None:
    async with MemoryNSQD() as server:
        async with open_producer(server) as producer:
            await producer.publish("t", b"one", group="Zürich", headers={"n": "1"})
            await producer.publish("t", b"later", delay=1, group=b"ana")
            await producer.publish_many("t", [b"m1", b"m2"], group="ben")
            await producer.publish("t", b"plain")
        found: dict[bytes, str | None] = {}
        async with open_consumer("t", "c", nsqd=[server]) as consumer:
            with trio.move_on_after(60):
                async for message in consumer:
                    found[message.body] = message.group
                    message.finish()
        assert found == {b"one": "Zürich", b"later": "ana", b"m1": "ben", b"m2": "ben", b"plain": None}


@jumping
async def test_where_nobody_would_see_them_they_are_refused_and_not_dropped() -> None:
    async with MemoryNSQD(extensions=()) as server, open_producer(server) as producer:
        with pytest.raises(Unsupported, match="knows no headers"):
            await producer.publish("t", b"one", headers={"n": "1"})
        await producer.publish("t", b"two", headers={})
        assert server.bodies("t") == [b"two"]


@jumping
async def test_what_no_nsqd_takes_is_refused_here() -> None:
    async with MemoryNSQD() as server, open_producer(server) as producer:
        for bad in ({"N": "1"}, {"a b": "1"}, {"n": "x" * 5000}):
            with pytest.raises(ValueError):
                await producer.publish("t", b"one", headers=bad)
        with pytest.raises(ValueError, match="headers of 1 messages for 2"):
            await producer.publish_many("t", [b"a", b"b"], headers=[{}])
        assert server.said() == []
