"""nsqclient, on asyncio. `bench client` measures it on trio."""

from __future__ import annotations

import asyncio

from bench.clients import AT_ONCE, BODY, CHANNEL, IN_FLIGHT, MAX_IN_FLIGHT, Meter, Task, task
from nsqclient import Config, Message, Producer
from nsqclient.aio import open_consumer, open_producer


async def publish(what: Task, meter: Meter) -> None:
    async with open_producer(what.address, connect="require") as producer:
        meter.start()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT[what.mode]):
                tasks.create_task((_publish_many if what.mode == "mpub" else _publish)(producer, what.topic, meter))
        meter.report()


async def _publish(producer: Producer, topic: str, meter: Meter) -> None:
    while not meter.count():
        await producer.publish(topic, BODY)


async def _publish_many(producer: Producer, topic: str, meter: Meter) -> None:
    bodies = [BODY] * AT_ONCE
    while not meter.is_over:
        await producer.publish_many(topic, bodies)
        meter.messages += AT_ONCE


async def consume(what: Task, meter: Meter) -> None:
    config = Config(max_in_flight=MAX_IN_FLIGHT)
    async with open_consumer(what.topic, CHANNEL, nsqd=what.address, config=config) as consumer:

        async def handle(message: Message) -> None:
            if meter.count():
                meter.report()
                consumer.stop()

        await consumer.run(handle)


if __name__ == "__main__":
    what = task()
    asyncio.run((consume if what.mode == "sub" else publish)(what, Meter(what.seconds)))
