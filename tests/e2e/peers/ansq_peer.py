"""ansq (asyncio), unmodified: publishes what stdin tells it, consumes, and reports on stdout. See test_clients.py."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import ansq

plan = json.load(sys.stdin)
address = f"{plan['host']}:{plan['port']}"
topic = plan["topic"]
arrived: list[tuple[str, int, float]] = []
began = time.monotonic()


async def handle(message: Any) -> bool:
    """Return whether the message will not come again."""
    body = message.body.decode()
    arrived.append((body, message.attempts, time.monotonic() - began))
    if body.startswith("requeue") and message.attempts == 1:
        await message.req(100)
        return False
    if body.startswith("fails"):
        await message.req(0)
        return bool(message.attempts == plan["most_attempts"])
    if body.startswith("touch"):
        await asyncio.sleep(plan["touch_after"])
        await message.touch()
        await asyncio.sleep(plan["finish_after"] - plan["touch_after"])
    await message.fin()
    return True


async def consume(reader: Any) -> None:
    left, handled = {*plan["expected"]}, set()

    async def one(message: Any) -> None:
        if await handle(message):
            left.discard(message.body.decode())
            if not left:
                await reader.close()

    async for message in reader.messages():
        task = asyncio.create_task(one(message))
        handled.add(task)
        task.add_done_callback(handled.discard)


async def publish(writer: Any) -> None:
    for body in plan["pub"]:
        assert (await writer.pub(topic, body)).is_ok
    for bodies in plan["mpub"]:
        assert (await writer.mpub(topic, *bodies)).is_ok
    for body in plan["dpub"]:
        assert (await writer.dpub(topic, body, plan["delay_ms"])).is_ok


async def main() -> None:
    once = ansq.ConnectionOptions(auto_reconnect=False)  # with reconnecting its reader would never end
    reader = await ansq.create_reader(topic, "channel", nsqd_tcp_addresses=[address], connection_options=once)
    for connection in reader.connections:
        await connection.rdy(200)
    writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
    async with asyncio.timeout(plan["limit"]):
        await asyncio.gather(publish(writer), consume(reader))
    await writer.close()
    json.dump(arrived, sys.stdout)


asyncio.run(main())
