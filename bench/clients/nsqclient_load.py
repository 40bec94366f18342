"""nsqclient, on trio; `aio_load.py` does the same on asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

import nsqclient
from bench.clients import AT_ONCE, BODY, CHANNEL, IN_FLIGHT, MAX_IN_FLIGHT, Meter, Task, task

# Runs a coroutine function so many times at once. Both libraries have producers and consumers of the same names.
Together = Callable[[int, Callable[[], Awaitable[None]]], Awaitable[None]]


async def run(library: Any, together: Together) -> None:
    what = task()
    meter = Meter(what.seconds, what.most)
    if what.mode == "sub":
        await _consume(library, what, meter)
    else:
        await _publish(library, together, what, meter)


async def _publish(library: Any, together: Together, what: Task, meter: Meter) -> None:
    bodies = [BODY] * AT_ONCE
    async with library.open_producer(what.address, connect="require") as producer:

        async def one_by_one() -> None:
            while not meter.count():
                await producer.publish(what.topic, BODY)

        async def many_at_once() -> None:
            while not meter.is_over:
                await producer.publish_many(what.topic, bodies)
                meter.messages += AT_ONCE

        meter.start()
        await together(IN_FLIGHT[what.mode], many_at_once if what.mode == "mpub" else one_by_one)
        meter.report()


async def _consume(library: Any, what: Task, meter: Meter) -> None:
    config = nsqclient.Config(max_in_flight=MAX_IN_FLIGHT)
    async with library.open_consumer(what.topic, CHANNEL, nsqd=what.address, config=config) as consumer:

        async def handle(message: Any) -> None:
            if meter.count():
                meter.report()
                consumer.stop()

        await consumer.run(handle)


async def on_trio(count: int, job: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(job)


if __name__ == "__main__":
    trio.run(run, nsqclient, on_trio)
