"""Batches: when they come, and what goes back when one is cancelled."""

from __future__ import annotations

import pytest
import trio

from nsqclient import Config, open_consumer
from nsqclient.testing import MemoryNSQD
from tests.nsqclient.consuming import until_said
from tests.support.jumping import jumping


@jumping
async def test_batches_are_not_held_back_when_nothing_more_can_come() -> None:
    async with MemoryNSQD() as server:
        for number in range(10):
            server.put("t", b"%d" % number)
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=4)) as consumer:
            sizes = []
            async for batch in consumer.batches(max_size=500, max_wait=60):
                sizes.append(len(batch))
                batch.finish()
                if sum(sizes) == 10:
                    break
            assert sizes[0] == 4
            assert trio.current_time() < 130


@jumping
async def test_a_batch_that_is_full_comes_at_once_and_another_after_its_time() -> None:
    async with MemoryNSQD() as server:
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=100)) as consumer:
            for number in range(5):
                server.put("t", b"%d" % number)
            batches = consumer.batches(max_size=3, max_wait=2)
            first = await anext(batches)
            began = trio.current_time()
            second = await anext(batches)
            assert (len(first), len(second)) == (3, 2)
            assert trio.current_time() - began == pytest.approx(2)
            first.finish()
            second.requeue(0, backoff=False)
        assert server.finished("t", "c") == [b"0", b"1", b"2"]


@jumping
async def test_a_batch_that_is_cancelled_while_it_grows_goes_back() -> None:
    async with MemoryNSQD() as server:
        id = server.put("t", b"one")
        async with open_consumer("t", "c", nsqd=server, config=Config(max_in_flight=100)) as consumer:
            with trio.move_on_after(1):
                async for _ in consumer.batches(max_size=3, max_wait=20):
                    pass
            await until_said(server, f"REQ {id} 0")
