"""More nsqds than `max_in_flight`: each of them is drained soon, without a setting."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio

from nsqclient import Config, Message, open_consumer
from nsqclient.testing import MemoryNSQD
from tests.support.jumping import jumping

NODES = 5
EACH = 40


@pytest.mark.parametrize("max_in_flight", [1, 2, 4])
@pytest.mark.parametrize("busy", [1, NODES])  # nodes with messages
@jumping
async def test_every_node_is_drained(max_in_flight: int, busy: int) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(MemoryNSQD()) for _ in range(NODES)]
        for node in nodes[-busy:]:
            for number in range(EACH):
                node.put("t", b"%d" % number)
        handled = most = 0
        first = dict[str, float]()

        async def handle(message: Message) -> None:
            nonlocal handled, most
            handled += 1
            most = max(most, handled)
            first.setdefault(message.nsqd, trio.current_time() - began)
            await trio.sleep(0.02)
            handled -= 1

        began = trio.current_time()
        config = Config(max_in_flight=max_in_flight)
        async with open_consumer("t", "c", nsqd=nodes, config=config) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: consumer.run(handle, concurrency=10))
            for node in nodes:
                await node.wait_empty("t", "c")
            consumer.stop()
        took = trio.current_time() - began
        assert max(first.values()) < 6, "one has waited too long for its turn"
        assert most <= max_in_flight
        assert took < 3 * busy * EACH * 0.02 / max_in_flight + 6
        assert sum(len(node.finished("t", "c")) for node in nodes) == busy * EACH


@jumping
async def test_a_handler_that_takes_long_keeps_its_place() -> None:
    """The turn of an nsqd may be over while its message is handled; the next turn begins after that."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(MemoryNSQD()) for _ in range(3)]
        for node in nodes:
            for number in range(3):
                node.put("t", b"%d" % number)
        handled = most = 0

        async def handle(message: Message) -> None:
            nonlocal handled, most
            handled += 1
            most = max(most, handled)
            await trio.sleep(5)
            handled -= 1

        async with (
            open_consumer("t", "c", nsqd=nodes, config=Config(max_in_flight=2)) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lambda: consumer.run(handle, concurrency=10))
            for node in nodes:
                await node.wait_empty("t", "c")
            consumer.stop()
        assert most == 2


@jumping
async def test_turns_become_short_when_max_in_flight_is_lowered() -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(MemoryNSQD()) for _ in range(3)]
        async with open_consumer("t", "c", nsqd=nodes, config=Config(max_in_flight=30)) as consumer:
            for node in nodes:
                await node.wait_until(lambda node=node: bool(node.said(1, "RDY")))  # type: ignore[misc]
            consumer.set_max_in_flight(1)
            await trio.sleep(1)
            for node in nodes:
                node.put("t", b"m")
            began = trio.current_time()
            for _ in nodes:
                (await anext(consumer)).finish()
            assert trio.current_time() - began < 1.5
