"""The sampler asks for the readers of a topic's logs: when, which nodes, and what it keeps while a node is silent."""

from __future__ import annotations

import json
import time
from typing import Any

import trio

from nsqadmin.cluster.model import Topic
from tests.nsqadmin.upstream.test_sampler import FakeNode, sampled
from tests.support.jumping import run_with_threads

READER = {
    "name": "land",
    "into": "/t",
    "format": "delta",
    "host": "etl-1",
    "log": "a",
    "sequence": 4,
    "heard": time.time_ns(),
    "committed": time.time_ns(),
    "rate": None,
    "behind": 7,
    "behind_bytes": 700,
    "behind_since": time.time_ns(),
    "missed": 0,
}


class NodeWithReaders(FakeNode):
    """An nsqd that has a log of the topic `t`."""

    def __init__(self, name: str, *readers: dict[str, Any]) -> None:
        super().__init__(name)
        self.log: dict[str, Any] = {"log": "a", "retention_time": 0, "retention_bytes": 0, "readers": list(readers)}
        self.asked_for_readers = 0
        self.before_log = trio.Event()
        self.before_log.set()

    async def serve(self, stream: trio.abc.Stream) -> None:
        async with stream:
            received = b""
            while data := await stream.receive_some():
                received += data
                if b"\r\n\r\n" not in received:
                    continue
                target = received.split(b" ", 2)[1].decode()
                received = b""
                status, body = b"200 OK", self.answer(target)
                if target == "/topic/log":
                    status = b"400 Bad Request"
                elif target.startswith("/topic/log"):
                    self.asked_for_readers += 1
                    await self.before_log.wait()
                    body = json.dumps(self.log).encode()
                await stream.send_all(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


async def looked_at(sampler: Any) -> Topic:
    found = (await sampler.refresh("t")).topic("t")
    assert found is not None
    assert isinstance(found, Topic)
    return found


def test_readers_are_asked_for_only_where_somebody_looks() -> None:
    async def test() -> None:
        node = NodeWithReaders("n1", READER)
        async with sampled(node) as sampler:
            found = (await sampler.refresh()).topic("t")
            assert found is not None
            assert found.readers is None, "not asked is not the same as none"
            assert not node.asked_for_readers
            (reader,) = (await looked_at(sampler)).readers or ()
            assert (reader.name, reader.into, reader.behind) == ("land", "/t", 7)

    run_with_threads(test)


def test_nodes_are_joined_and_who_tells_nothing_is_named() -> None:
    async def test() -> None:
        one, two, go = NodeWithReaders("n1", READER), NodeWithReaders("n2", {**READER, "behind": 5}), FakeNode("go")
        old = NodeWithReaders("old")
        del old.log["readers"]
        async with sampled(one, two, go, old) as sampler:
            await sampler.refresh()
            topic = await looked_at(sampler)
            (reader,) = topic.readers or ()
            assert (reader.behind, len(reader.nodes)) == (12, 2)
            reasons = {it.node: it.reason for it in topic.readers_untold}
            assert reasons.keys() == {go.address, old.address}
            assert "Go nsqd" in reasons[go.address]
            assert "older than this nsqadmin" in reasons[old.address]

    run_with_threads(test)


def test_a_node_that_answers_no_more_is_shown_with_what_it_said_last() -> None:
    async def test() -> None:
        one, two = NodeWithReaders("n1", READER), NodeWithReaders("n2", READER)
        async with sampled(one, two, http_client_request_timeout=1_000_000_000) as sampler:
            await sampler.refresh()
            assert (await looked_at(sampler)).readers_untold == ()
            two.before_log = trio.Event()
            with trio.fail_after(20):
                while not (topic := await looked_at(sampler)).readers_untold:
                    pass
            (reader,) = topic.readers or ()
            assert reader.behind == 14, "no sum that shrinks"
            assert [bool(it.reason) for it in sorted(reader.nodes, key=lambda it: it.node == two.address)] == [
                False,
                True,
            ]
            two.before_log.set()

    run_with_threads(test)


def test_a_node_that_hangs_with_its_readers_delays_no_picture_for_long() -> None:
    async def test() -> None:
        node = NodeWithReaders("n1", READER)
        async with sampled(node) as sampler:
            await sampler.refresh()
            node.before_log = trio.Event()
            began = trio.current_time()
            topic = await looked_at(sampler)
            assert topic.readers is None
            assert trio.current_time() - began < 3
            began = trio.current_time()
            await looked_at(sampler)  # the node is not asked twice
            assert trio.current_time() - began < 3
            assert node.asked_for_readers == 1
            node.before_log.set()

    run_with_threads(test)
