"""What trio has, asyncio and plain calls have too: with a real nsqd."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nsqclient import Config, ConnectError, GiveUp, Message, aio, events, quorum, sync
from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, Nsqlookupd, eventually

LIMIT = 30.0


def place(nsqd: Nsqd) -> str:
    return f"127.0.0.1:{nsqd.tcp[1]}"


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT):
            await work

    asyncio.run(limited())


def fill(nsqd: Nsqd, topic: str, count: int) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    with sync.producer(place(nsqd)) as producer:
        producer.publish_many(topic, [b"%d" % number for number in range(count)], timeout=10)


def test_batches_on_asyncio(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 25)

    async def work() -> None:
        sizes = []
        async with aio.open_consumer(topic, "c", nsqd=place(nsqd), config=Config(max_in_flight=50)) as consumer:
            async for batch in consumer.batches(10, 0.5):
                sizes.append(len(batch))
                batch.finish()
                if sum(sizes) == 25:
                    break
            assert not consumer.has_waiting
            with pytest.raises(ValueError, match="max_size of 0"):
                consumer.batches(0, 1)
        assert max(sizes) <= 10

    run(work())
    eventually(lambda: nsqd.channel(topic)["depth"] == 0)


def _has_all(consumer: aio.Consumer, count: int) -> bool:
    """Return whether so many messages have come, and none of them waits to be taken."""
    stats = consumer.stats()
    return stats.received == count and not any(it.queued for it in stats.connections)


def test_a_batch_on_asyncio_that_is_cancelled_is_requeued(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 3)

    async def work() -> None:
        async with aio.open_consumer(topic, "c", nsqd=place(nsqd), config=Config(max_in_flight=50)) as consumer:
            batches = consumer.batches(10, 20)
            waiting = asyncio.ensure_future(anext(batches))
            while not _has_all(consumer, 3):  # noqa: ASYNC110 -- until the batch has all of them
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            again = await anext(consumer.batches(3, 10))
            assert [message.attempts for message in again] == [2, 2, 2]
            again.finish()

    run(work())


def test_groups_and_several_topics(nsqd: Nsqd, topic: str) -> None:
    topics = [f"{topic}.high", topic]
    expected = {(name, group, group.encode()) for name in topics for group in ("ana", "ben")}

    async def work() -> None:
        async with aio.open_producer(place(nsqd), strategy="by_group") as producer:
            for name, group, body in expected:
                await producer.publish(name, body, group=group)
        found = set()
        async with aio.open_consumer(topics, "c", weights=[8, 1], nsqd=place(nsqd)) as consumer:
            async for message in consumer:
                found.add((message.topic, message.group, message.body))
                message.finish()
                if len(found) == 4:
                    consumer.stop()
        assert found == expected

    run(work())
    with sync.producer(place(nsqd), strategy="by_group") as producer:
        for name, group, body in expected:
            producer.publish_many(name, [body], group=group, timeout=10)
    with sync.consumer(topics, "c", weights=[8, 1], nsqd=place(nsqd)) as consumer:
        found = set()
        for message in consumer.messages(idle_timeout=LIMIT):
            found.add((message.topic, message.group, message.body))
            message.finish()
            if len(found) == 4:
                break
    assert found == expected


def test_events_and_pings_on_asyncio(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 1)

    async def work() -> None:
        async with aio.open_consumer(topic, "c", nsqd=place(nsqd)) as consumer:
            happened = consumer.events()
            (await anext(consumer)).finish()
            assert isinstance(await anext(happened), events.Connected)
        left = [event async for event in happened]  # the end of the consumer ends the events
        assert isinstance(left[-1], events.Disconnected)
        config = Config(heartbeat_interval=1.0)
        async with aio.open_producer(place(nsqd), config=config) as producer:
            happened = producer.events()
            await producer.probe_write()
            assert isinstance(await anext(happened), events.Connected)
            await producer.ping()
        async with aio.open_producer("127.0.0.1:1") as producer:
            with pytest.raises(ConnectError):
                await producer.ping()

    run(work())


def test_a_publish_on_asyncio_that_is_cancelled_as_its_answer_comes_is_reported(nsqd: Nsqd, topic: str) -> None:
    async def work() -> None:
        async with aio.open_producer(place(nsqd), connect="require") as producer:
            late = (event async for event in producer.events() if isinstance(event, events.LatePublish))
            following = asyncio.create_task(anext(late))
            publish = asyncio.create_task(producer.publish(topic, b"one"))
            connection = producer._nodes[0].connection
            assert connection is not None
            while not connection.pending:  # noqa: ASYNC110 -- until the publish is queued
                await asyncio.sleep(0)
            connection.pending[0].when_done(publish.cancel)
            with pytest.raises(asyncio.CancelledError):
                await publish
            assert await following == events.LatePublish(topic, None)

    run(work())


def test_a_quorum_on_asyncio(start_nsqd: StartNsqd) -> None:
    one, two = start_nsqd(), start_nsqd()

    async def work() -> None:
        async with aio.open_producer([place(one), place(two)], strategy="all") as producer:
            await producer.publish("t", b"all")
        async with aio.open_producer([place(one), place(two), "127.0.0.1:1"], strategy=quorum(2)) as producer:
            await producer.publish("t", b"two of three")

    run(work())
    assert [node.topic("t")["message_count"] for node in (one, two)] == [2, 2]


def test_an_nsqd_that_is_listed_no_more_is_dropped_on_asyncio(start_nsqd: StartNsqd) -> None:
    with Nsqlookupd() as lookupd:
        nsqd = start_nsqd(f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}", "broadcast-address=127.0.0.1")
        fill(nsqd, "t", 1)
        eventually(lambda: lookupd.producers("t"))

        async def work() -> None:
            config = Config(lookupd_poll_interval=0.1)
            async with aio.open_consumer(
                "t", "c", lookupd=f"127.0.0.1:{lookupd.http_address[1]}", config=config, drop_unlisted_after=0.2
            ) as consumer:
                (await anext(consumer)).finish()
                node = f"127.0.0.1:{nsqd.http_address[1]}"
                lookupd.post(f"/topic/tombstone?topic=t&node={node}")
                while consumer.stats().connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        run(work())


def test_a_handler_in_the_threads_of_an_executor_on_asyncio(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 4)
    names: list[str] = []

    async def work() -> None:
        async with aio.open_consumer(topic, "c", nsqd=place(nsqd)) as consumer:

            def handle(message: Message) -> None:
                names.append(threading.current_thread().name)
                message.finish()
                if len(names) == 4:
                    loop.call_soon_threadsafe(consumer.stop)

            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(1, "ours") as executor:
                await consumer.run(handle, thread_limiter=executor)

    run(work())
    assert [name.partition("_")[0] for name in names] == ["ours"] * 4


def test_a_handler_on_asyncio_that_awaits_what_was_cancelled_has_failed(nsqd: Nsqd, topic: str) -> None:
    """Its consumer is not cancelled, so it goes on with the next message."""
    fill(nsqd, topic, 3)
    attempts: list[int] = []

    async def work() -> None:
        config = Config(backoff="none", default_requeue_delay=0)
        async with aio.open_consumer(topic, "c", nsqd=place(nsqd), config=config) as consumer:

            async def handle(message: Message) -> None:
                attempts.append(message.attempts)
                if len(attempts) == 1:
                    other = asyncio.get_running_loop().create_future()
                    other.cancel()
                    await other
                if len(attempts) == 4:
                    consumer.stop()

            await consumer.run(handle)

    run(work())
    assert sorted(attempts) == [1, 1, 1, 2]


def test_a_dead_letter_on_asyncio_that_awaits_what_was_cancelled_comes_again(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 1)
    attempts: list[int] = []

    async def work() -> None:
        done = asyncio.Event()

        async def bury(message: Message) -> None:
            attempts.append(message.attempts)
            if len(attempts) == 1:
                other = asyncio.get_running_loop().create_future()
                other.cancel()
                await other
            done.set()

        async def give_up(message: Message) -> None:
            raise GiveUp("nobody wants it")

        config = Config(backoff="none", default_requeue_delay=0)
        async with aio.open_consumer(topic, "c", nsqd=place(nsqd), config=config, dead_letter=bury) as consumer:
            running = asyncio.create_task(consumer.run(give_up))
            await done.wait()
            consumer.stop()
            await running

    run(work())
    assert attempts == [1, 2]


def test_a_handler_in_threads(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 20)
    at_once = most = handled = 0
    changed = threading.Condition()
    with sync.consumer(topic, "c", nsqd=place(nsqd), config=Config(max_in_flight=20, backoff="none")) as consumer:

        def handle(message: Message) -> None:
            nonlocal at_once, most, handled
            with changed:
                at_once += 1
                most = max(most, at_once)
                changed.notify_all()
                assert changed.wait_for(lambda: most >= 4, LIMIT), "so many may be handled at once"
                at_once -= 1
                handled += 1
                if handled == 20:
                    consumer.stop()
            if message.body == b"7":
                raise GiveUp("never")

        consumer.run(handle, concurrency=4)
        with pytest.raises(TypeError, match="plain function"):
            consumer.run(asyncio.sleep)  # type: ignore[arg-type]
    assert most == 4
    eventually(lambda: (it := nsqd.channel(topic)) and (it["depth"], it["in_flight_count"]) == (0, 0))


def test_a_pause_in_plain_calls(nsqd: Nsqd, topic: str) -> None:
    with sync.consumer(topic, "c", nsqd=place(nsqd)) as consumer:
        consumer.pause()
        eventually(lambda: (it := consumer.stats().connections) and it[0].rdy == 0)
        consumer.resume()
        eventually(lambda: consumer.stats().connections[0].rdy > 0)


def test_batches_and_figures_in_plain_calls(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 25)
    with sync.consumer(topic, "c", nsqd=place(nsqd), config=Config(max_in_flight=50)) as consumer:
        count = 0
        for batch in consumer.batches(10, 0.5):
            count += len(batch)
            batch.finish()
            if count == 25:
                consumer.stop()
        assert count == 25
        assert consumer.max_in_flight == 50
        consumer.set_max_in_flight(7)
        consumer.pause()
        consumer.resume()
        assert consumer.max_in_flight == 7
        assert not consumer.has_waiting
        assert not consumer.is_starved()
        assert consumer.stats().finished == 25
    with sync.producer(place(nsqd), config=Config(heartbeat_interval=1.0)) as producer:
        assert not producer.connected
        producer.ping(timeout=10)
        assert producer.connected
        assert producer.stats().nodes[0].connected
