"""ansq, on asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import ansq

from bench.clients import AT_ONCE, BODY, CHANNEL, IN_FLIGHT, MAX_IN_FLIGHT, Meter, Task, task


async def publish(what: Task, meter: Meter) -> None:
    writer = await ansq.create_writer(nsqd_tcp_addresses=[what.address])
    meter.start()
    work = _publish_many if what.mode == "mpub" else _publish
    await asyncio.gather(*(work(writer, what.topic, meter) for _ in range(IN_FLIGHT[what.mode])))
    meter.report()


async def _publish(writer: Any, topic: str, meter: Meter) -> None:
    while not meter.count():
        await writer.pub(topic, BODY)


async def _publish_many(writer: Any, topic: str, meter: Meter) -> None:
    bodies = [BODY] * AT_ONCE
    while not meter.is_over:
        assert (await writer.mpub(topic, *bodies)).is_ok
        meter.messages += AT_ONCE


async def consume(what: Task, meter: Meter) -> None:
    reader = await ansq.create_reader(what.topic, CHANNEL, nsqd_tcp_addresses=[what.address])
    for connection in reader.connections:
        await connection.rdy(MAX_IN_FLIGHT)  # there is no setting for it
    async for message in reader.messages():
        await message.fin()
        if meter.count():
            break
    meter.report()


if __name__ == "__main__":
    what = task()
    asyncio.run((consume if what.mode == "sub" else publish)(what, Meter(what.seconds)))
