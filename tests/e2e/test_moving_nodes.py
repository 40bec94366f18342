"""A producer that finds its nodes by nsqlookupd loses and doubles nothing while nodes and nsqlookupds are killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import trio

import nsqclient
from nsqclient import aio
from tests.e2e.moving_nodes import run
from tests.support.cluster import a_cluster
from tests.support.process import Nsqd, eventually

LIMIT: Final = 30.0
CONFIG: Final = nsqclient.Config(drain_timeout=5)


@pytest.mark.parametrize("colour", ["trio", "aio"])
def test_nodes_and_nsqlookupds_are_killed_in_turn(tmp_path: Path, colour: str) -> None:
    run(tmp_path, seconds=3, every=1, down=0.2, rate=1000, batch=10, colour=colour, tell=print, slowest=30)


@pytest.mark.parametrize("colour", ["trio", "aio"])
def test_publishers_leave_a_node_that_drains_before_it_refuses(tmp_path: Path, colour: str) -> None:
    """Not one publish is refused, though nothing is retried, and after the drain the node has its share again."""
    with a_cluster(tmp_path) as cluster:
        eventually(lambda: all(len(it.get("/nodes")["producers"]) == 2 for it in cluster.lookupds))
        drained, other = cluster.nodes
        consumer = drained.connect()  # keeps the drain going
        consumer.subscribe("t", "c")
        lookupds = [name.partition("=")[2] for name in cluster.lookupd_options]

        async def publish(open_producer: Any, sleep: Any) -> None:
            async def publish_until(condition: Callable[[], bool]) -> None:
                deadline = time.monotonic() + LIMIT
                while not condition():
                    assert time.monotonic() < deadline
                    await producer.publish("t", b"m")
                    await sleep(0.01)

            async with open_producer(lookupd=lookupds, retry="never", config=CONFIG) as producer:
                await publish_until(lambda: bool(count_of(drained) and count_of(other)))
                drained.post("/drain")
                await publish_until(lambda: "refusing publishes from now on" in drained.log)
                before = count_of(drained)
                for _ in range(50):
                    await producer.publish("t", b"m")
                assert count_of(drained) == before
                drained.post("/undrain")
                await publish_until(lambda: count_of(drained) > before)

        if colour == "trio":
            trio.run(publish, nsqclient.open_producer, trio.sleep)
        else:
            asyncio.run(publish(aio.open_producer, asyncio.sleep))


def count_of(node: Nsqd) -> int:
    found = node.topic("t")
    return int(found["message_count"]) if found else 0
