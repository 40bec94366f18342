"""Backoff of a consumer: which RDY it sends to nsqds in memory after failures, and when."""

from __future__ import annotations

import itertools

import trio

from nsqclient import Config, Message, open_consumer
from nsqclient.testing import MemoryNSQD
from tests.nsqclient.consuming import failing, rdys, until_said
from tests.support.jumping import jumping


@jumping
async def test_burying_is_neither_success_nor_failure_to_backoff() -> None:
    async with MemoryNSQD() as server:
        for number in range(2):
            server.put("t", b"%d" % number)
        async with open_consumer("t", "c", nsqd=server) as consumer:
            (await anext(consumer)).requeue(100)
            assert consumer.stats().backoff_level == 1
            (await anext(consumer)).bury()
            assert consumer.stats().backoff_level == 1


@jumping
async def test_backoff_as_it_is_known() -> None:
    """One failing sink, multiplier 100 ms, at most 1 s; then the sink recovers."""
    is_healed = False

    async def handle(message: Message) -> None:
        if not is_healed:
            raise RuntimeError("sink")

    async with MemoryNSQD() as server:
        for number in range(20):
            server.put("t", b"%d" % number)
        config = Config(
            max_in_flight=5,
            max_attempts=0,
            backoff_multiplier=0.1,
            max_backoff_duration=1,
            default_requeue_delay=0.001,
        )
        async with open_consumer("t", "c", nsqd=server, config=config) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(3.5)
            is_healed = True
            await server.wait_empty("t", "c")
            consumer.stop()
    said = [it for it in server.commands if it.text.startswith("RDY")]
    steps = [(it.text, round(it.time - before.time, 2)) for before, it in itertools.pairwise(said)]
    assert steps[:10] == [
        ("RDY 0", 0.0),
        ("RDY 1", 0.2),
        ("RDY 0", 0.0),
        ("RDY 1", 0.4),
        ("RDY 0", 0.0),
        ("RDY 1", 0.8),
        ("RDY 0", 0.0),
        ("RDY 1", 0.8),
        ("RDY 0", 0.0),
        ("RDY 1", 0.8),
    ]
    assert steps[-6:] == [
        ("RDY 1", 0.8),
        ("RDY 0", 0.0),
        ("RDY 1", 0.4),
        ("RDY 0", 0.0),
        ("RDY 1", 0.2),
        ("RDY 5", 0.0),
    ]
    first_answer = next(number for number, it in enumerate(server.commands) if it.text.startswith("REQ"))
    assert server.commands[first_answer - 1].text == "RDY 0"  # RDY is sent before the answer


@jumping
async def test_without_backoff_failures_change_no_rdy() -> None:
    async with MemoryNSQD() as server:
        for number in range(12):
            server.put("t", b"%d" % number)
        config = Config(max_in_flight=3, max_backoff_duration=0, default_requeue_delay=60)
        async with open_consumer("t", "c", nsqd=server, config=config) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, failing)
            await server.wait_until(lambda: len(server.said(None, "REQ")) == 12)
            consumer.stop()
        assert rdys(server) == [3]


@jumping
async def test_backoff_with_nobody_to_test_tries_again_a_second_later() -> None:
    async with MemoryNSQD() as server:
        server.put("t", b"one")
        async with open_consumer("t", "c", nsqd=server, config=Config(backoff_multiplier=0.5)) as consumer:
            (await anext(consumer)).requeue(0)
            await until_said(server, "RDY 0")
            server.is_up = False
            server.break_connections()
            await trio.sleep(10)
            assert consumer.stats().backoff_level == 1
            server.is_up = True
            again = await anext(consumer)
            assert rdys(server)[-1] == 1
            again.finish()
            assert consumer.stats().backoff_level == 0
