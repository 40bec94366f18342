"""A consumer of several topics."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from nsqclient import Config, ConfigError, GiveUp, Message, open_consumer
from nsqclient.testing import MemoryNSQD
from tests.nsqclient.consuming import until_said
from tests.support.jumping import jumping

TOPICS = ["orders.high", "orders"]


@jumping
async def test_messages_of_all_topics_come_and_each_says_its_own() -> None:
    async with MemoryNSQD() as server:
        for topic in TOPICS:
            for number in range(20):
                server.put(topic, b"%d" % number)
        seen: Counter[str] = Counter()
        async with open_consumer(
            TOPICS, "billing", nsqd=server, weights=[8, 1], config=Config(max_in_flight=9)
        ) as consumer:
            assert (consumer.topic, consumer.topics) == ("orders.high,orders", ("orders.high", "orders"))
            async for message in consumer:
                async with message:
                    seen[message.topic] += 1
                if seen.total() == 40:
                    consumer.stop()
        assert seen == {"orders.high": 20, "orders": 20}


@jumping
async def test_an_nsqd_in_memory_delivers_headers_and_the_group() -> None:
    async with MemoryNSQD() as server:
        server.put("orders", b"a", group="customer-7")
        server.put("orders", b"b", headers={"kind": "refund"}, group="customer-8")
        server.put("orders", b"c")
        async with open_consumer("orders", "billing", nsqd=server, config=Config(max_in_flight=4)) as consumer:
            seen = []
            async for message in consumer:
                async with message:
                    seen.append((message.body, message.group, message.headers.get("kind")))
                if len(seen) == 3:
                    consumer.stop()
        assert seen == [(b"a", "customer-7", None), (b"b", "customer-8", b"refund"), (b"c", None, None)]
        with pytest.raises(ValueError, match="invalid group"):
            server.put("orders", b"d", group="")


@jumping
async def test_topics_share_one_max_in_flight_by_weight() -> None:
    async with MemoryNSQD() as server:
        for topic in TOPICS:
            for number in range(100):
                server.put(topic, b"%d" % number)
        async with open_consumer(
            TOPICS, "billing", nsqd=server, weights=[8, 1], config=Config(max_in_flight=9)
        ) as consumer:
            while consumer.stats().received < 9:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await trio.sleep(1)
            held = {it.topic: it.in_flight for it in consumer.stats().connections}
            assert held == {"orders.high": 8, "orders": 1}
            assert consumer.max_in_flight == 9


@jumping
async def test_a_pause_and_a_limit_are_for_all_topics() -> None:
    async with MemoryNSQD() as server:
        async with open_consumer(TOPICS, "billing", nsqd=server, config=Config(max_in_flight=4)) as consumer:
            await until_said(server, "RDY 2")
            consumer.pause()
            await until_said(server, "RDY 0")
            assert [it.rdy for it in consumer.stats().connections] == [0, 0]
            consumer.set_max_in_flight(20)
            consumer.resume()
            await until_said(server, "RDY 10")
            assert [it.rdy for it in consumer.stats().connections] == [10, 10]


@jumping
async def test_a_failing_handler_slows_all_topics_down_and_they_recover() -> None:
    async with MemoryNSQD() as server:
        server.put("orders", b"bad")
        failed = 0

        async def handle(message: Message) -> None:
            nonlocal failed
            if message.body == b"bad" and not failed:
                failed += 1
                raise RuntimeError("no luck")

        config = Config(max_in_flight=4, default_requeue_delay=0)
        async with (
            open_consumer(TOPICS, "billing", nsqd=server, config=config) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            while not failed:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await trio.sleep(0.1)
            assert [it.rdy for it in consumer.stats().connections] == [0, 0]
            server.put("orders.high", b"good")
            await server.wait_empty("orders", "billing")
            await server.wait_empty("orders.high", "billing")
            while consumer.stats().backoff_level:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert sum(it.rdy for it in consumer.stats().connections) == 4
            consumer.stop()


@jumping
async def test_the_end_requeues_what_waits_of_all_topics() -> None:
    async with MemoryNSQD() as server:
        for topic in TOPICS:
            server.put(topic, b"x")
        async with open_consumer(TOPICS, "billing", nsqd=server, config=Config(max_in_flight=4)) as consumer:
            while consumer.stats().received < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert consumer.has_waiting
        said = [it.split(" ")[0] for it in server.said()]
        assert said.count("CLS") == 2
        assert said.count("REQ") == 2


@jumping
async def test_dead_letters_of_all_topics() -> None:
    async with MemoryNSQD() as server:
        for topic in TOPICS:
            server.put(topic, b"of " + topic.encode())

        async def handle(message: Message) -> None:
            raise GiveUp("no use")

        async with (
            open_consumer(TOPICS, "billing", nsqd=server, dead_letter="dead") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            for topic in TOPICS:
                await server.wait_empty(topic, "billing")
            assert consumer.stats().given_up == 2
            consumer.stop()
        assert sorted(server.bodies("dead")) == [b"of orders", b"of orders.high"]


@jumping
async def test_a_batch_may_have_messages_of_several_topics() -> None:
    async with MemoryNSQD() as server:
        for topic in TOPICS:
            for _ in range(5):
                server.put(topic, b"x")
        async with open_consumer(TOPICS, "billing", nsqd=server, config=Config(max_in_flight=10)) as consumer:
            while consumer.stats().received < 10:  # noqa: ASYNC110
                await trio.sleep(0.01)
            async for batch in consumer.batches(10, 1.0):
                assert Counter(it.topic for it in batch) == {"orders.high": 5, "orders": 5}
                batch.finish()
                consumer.stop()


@jumping
async def test_bad_topics_and_weights_are_refused_before_anything_is_sent() -> None:
    async with MemoryNSQD() as server:
        with pytest.raises(ConfigError, match=r"invalid weights ! \[8, 'one'\], expected a number from"):
            async with open_consumer(TOPICS, "billing", nsqd=server, weights=[8, "one"]):  # type: ignore[list-item]
                pass
        with pytest.raises(ConfigError, match="invalid topic name"):
            async with open_consumer(["orders", "no topic"], "billing", nsqd=server):
                pass
        assert server.commands == []
