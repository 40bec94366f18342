"""Cancellation at every step of any task: nothing is lost, nothing is finished twice, nothing goes on.

If a task were left, the servers' nursery, or trio, would wait for it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.abc
import trio.testing

from nsqclient import Config, Consumer, Message, NSQError, Requeue, open_consumer, open_producer
from nsqclient.testing import MemoryNSQD

MESSAGES = 2  # on each of two servers; what this takes grows with its square
MOST_STEPS = 3000
EVERY = int(os.environ.get("CANCEL_EVERY", "1"))  # larger in scripts/test-quick, which begins at another step each time


class CancelAt(trio.abc.Instrument):
    """Cancels `scope` after the n-th step of all tasks, counted from `begin`."""

    def __init__(self, step: int) -> None:
        self.scope = trio.CancelScope()
        self._left = step
        self._counts = False

    def begin(self) -> None:
        self._counts = True

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._counts and self._left:
            self._left -= 1
            if not self._left:
                self.scope.cancel()


def at_every_step(scenario: Callable[[CancelAt], Awaitable[bool]]) -> None:
    """Run `scenario` with a cancellation at each step, until it says that it came to its end."""
    for step in range(random.randint(1, EVERY), MOST_STEPS, EVERY):
        cancelling = CancelAt(step)

        async def limited(cancelling: CancelAt = cancelling) -> bool:
            with trio.fail_after(10_000):
                return await scenario(cancelling)

        clock = trio.testing.MockClock(autojump_threshold=0)
        if trio.run(limited, clock=clock, instruments=[cancelling]):
            assert step > 50  # otherwise hardly anything was tried
            return
    pytest.fail(f"more than {MOST_STEPS} steps")


async def work(message: Message) -> None:
    await trio.sleep(0.01 * int(message.body))
    if message.body == b"1" and message.attempts == 1:
        raise Requeue(0, backoff=False)


async def by_run(consumer: Consumer) -> None:
    await consumer.run(work, concurrency=2)


async def by_iteration(consumer: Consumer) -> None:
    async for message in consumer:
        async with message, message.keep_alive():
            await work(message)


async def by_batches(consumer: Consumer) -> None:
    async for batch in consumer.batches(max_size=2, max_wait=0.05):
        try:
            await trio.sleep(0.01)
            batch.finish()
        finally:
            batch.requeue(0, backoff=False)


async def by_own_tasks(consumer: Consumer) -> None:
    async def one(message: Message) -> None:
        try:
            await trio.sleep(0.01)
            message.finish()
        except trio.Cancelled:
            message.requeue(0, backoff=False)
            raise

    async with trio.open_nursery() as nursery:
        async for message in consumer:
            nursery.start_soon(one, message)


@pytest.mark.parametrize("consume", [by_run, by_iteration, by_batches, by_own_tasks])
def test_a_consumer(consume: Callable[[Consumer], Awaitable[None]]) -> None:
    async def scenario(cancelling: CancelAt) -> bool:
        done = False
        async with MemoryNSQD() as first, MemoryNSQD() as second:
            servers = [first, second]
            for server in servers:
                for number in range(MESSAGES):
                    server.put("t", b"%d" % number)
            cancelling.begin()
            with cancelling.scope:
                async with open_consumer("t", "c", nsqd=servers, config=Config(max_in_flight=5)) as consumer:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(consume, consumer)
                        for server in servers:
                            await server.wait_empty("t", "c")
                        consumer.stop()
                done = True
            for server in servers:
                await server.wait_until(lambda server=server: not server.connections)  # type: ignore[misc]
                where = Counter(server.finished("t", "c")) + Counter(
                    it.body for it in server._broker.channel("t", "c").waiting
                )
                # Every message is either finished, or at once available to others.
                assert where == Counter(b"%d" % number for number in range(MESSAGES))
        return done

    at_every_step(scenario)


def test_a_producer() -> None:
    async def scenario(cancelling: CancelAt) -> bool:
        confirmed: list[bytes] = []
        asked: list[bytes] = []
        done = False

        async def publish(body: bytes) -> None:
            asked.append(body)
            await producer.publish("t", body)
            confirmed.append(body)

        async with MemoryNSQD() as server:
            cancelling.begin()
            with cancelling.scope:
                async with open_producer(server) as producer:
                    async with trio.open_nursery() as nursery:
                        for number in range(5):
                            nursery.start_soon(publish, b"%d" % number)
                    await producer.publish_many("t", [b"a", b"b"])
                    server.break_connections()
                    await trio.testing.wait_all_tasks_blocked()
                    await publish(b"5")
                    receipt = await producer.submit("t", b"6")
                done = receipt.done
            await server.wait_until(lambda: not server.connections)
            stored = Counter(server.bodies("t"))
            assert max(stored.values(), default=1) == 1
            assert set(confirmed) <= set(stored)
            assert set(stored) <= {*asked, b"a", b"b", b"6"}
        return done

    at_every_step(scenario)


def test_one_publish_is_cancelled_and_others_are_not() -> None:
    """Cancelling one publish does not affect the receipts of the others."""

    async def scenario(cancelling: CancelAt) -> bool:
        done = False
        outcomes: dict[bytes, bool] = {}

        async def publish(topic: str, body: bytes) -> None:
            try:
                await producer.publish(topic, body)
                outcomes[body] = True
            except NSQError:
                outcomes[body] = False

        async with MemoryNSQD() as server, open_producer(server) as producer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, "t", b"before")
                cancelling.begin()
                with cancelling.scope:
                    for number in range(8):
                        await producer.publish("cancelled", b"%d" % number)
                    done = True
                nursery.start_soon(publish, "t", b"after")
            assert outcomes == {b"before": True, b"after": True}
            assert set(server.bodies("t")) == {b"before", b"after"}
        return done

    at_every_step(scenario)
