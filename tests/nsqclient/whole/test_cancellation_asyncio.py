"""Cancellation on asyncio at every turn of the loop, with a real nsqd: nothing is lost, and no task goes on.

tests/nsqclient/whole/test_cancellation_trio.py does this for trio, at every step of every task.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nsqclient import Config, Message, aio
from tests.support.process import Nsqd, eventually

pytestmark = pytest.mark.slow

LIMIT = 30
MESSAGES = 4
MOST_TURNS = 400


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that cancels `task` after this many turns."""

    turns_left = 0
    task: asyncio.Task[None] | None = None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]  # asyncio's own, and the only place where a turn can be seen
        if self.task is not None and self.turns_left:
            self.turns_left -= 1
            if not self.turns_left:
                self.task.cancel()


async def work(message: Message) -> None:
    await asyncio.sleep(0.001)


async def consume(address: str, topic: str, handled: list[bytes]) -> None:
    async with aio.open_consumer(topic, "c", nsqd=address, config=Config(max_in_flight=3)) as consumer:

        async def handle(message: Message) -> None:
            async with message.keep_alive():
                await work(message)
            handled.append(message.body)
            if len(handled) == MESSAGES:
                consumer.stop()

        await consumer.run(handle, concurrency=2)


def cancelled_after(turns: int, address: str, topic: str) -> tuple[bool, list[bytes]]:
    """Return whether the task ended before that, and which messages it handled."""
    handled: list[bytes] = []
    loop = CountingLoop()

    async def main() -> bool:
        task = asyncio.create_task(consume(address, topic, handled))
        loop.task, loop.turns_left = task, turns
        await asyncio.wait([task], timeout=LIMIT)
        assert task.done()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others
        if not task.cancelled():
            task.result()
        return not task.cancelled()

    try:
        return loop.run_until_complete(main()), handled
    finally:
        loop.close()


def test_a_consumer(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data") as nsqd:
        address = f"127.0.0.1:{nsqd.tcp[1]}"
        publisher = nsqd.connect()
        for turns in range(1, MOST_TURNS):
            topic = f"t{turns}"
            nsqd.post(f"/topic/create?topic={topic}")
            nsqd.post(f"/channel/create?topic={topic}&channel=c")
            for number in range(MESSAGES):
                publisher.publish(topic, b"%d" % number)
            is_done, handled = cancelled_after(turns, address, topic)

            def nobody_has_any(topic: str = topic) -> Any:
                found = nsqd.channel(topic)
                return found if not found["in_flight_count"] and not found["clients"] else None

            channel = eventually(nobody_has_any)
            finished = MESSAGES - channel["depth"] - channel["deferred_count"]
            # If it is cancelled between the end of a handler and the answer, the message is handled, but not finished.
            assert finished <= len(handled), json.dumps(channel)
            assert len(set(handled)) == len(handled)
            if is_done:
                assert finished == MESSAGES
                assert turns > 10
                return
    pytest.fail(f"more than {MOST_TURNS} turns")
