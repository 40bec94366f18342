"""The sampler with nodes that do what a test tells them: slow, hanging, restarted, or answering nonsense."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import trio
import trio.testing

from bench.admin_nodes import Nsqd as BigNode
from bench.ports import take_port
from nsqadmin.actions.audit import ActivityLog
from nsqadmin.cluster import series_file
from nsqadmin.cluster.model import Health, Snapshot, Span, channel_series
from nsqadmin.options import Options
from nsqadmin.upstream.asked import PATIENCE, AskedNode
from nsqadmin.upstream.client import Document, Upstream, opened
from nsqadmin.upstream.discovery import Announced
from nsqadmin.upstream.sampler import Sampler
from nsqadmin.upstream.slices import Slices, at_once
from nsqadmin.upstream.stats import Stats
from tests.support.jumping import run_with_threads
from tests.support.quick import unless_quick

T = TypeVar("T")

SECOND = 1_000_000_000


class FakeNode:
    """An nsqd over HTTP. `before` is awaited before each answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.depth = 0
        self.in_flight = 0
        self.start_time = 1
        self.asked = 0
        self.body: bytes | None = None
        self.remote: dict[str, object] = {}  # what it says about its copy in an object store
        self.before: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, target: str) -> bytes:
        if target.startswith("/info"):
            return json.dumps(
                {"hostname": self.name, "broadcast_address": "127.0.0.1", "http_port": self.port, "tcp_port": 1}
            ).encode()
        channel: dict[str, object] = {"channel_name": "c", "depth": self.depth, "message_count": self.depth}
        channel |= {"client_count": 0}
        if self.in_flight:
            channel |= {"client_count": 1, "clients": [{"remote_address": "c:1", "in_flight_count": self.in_flight}]}
            channel |= {"in_flight_count": self.in_flight, "message_count": self.depth + self.in_flight}
        topic = {"topic_name": "t", "channels": [channel], "message_count": self.depth}
        document = {"version": "1.3.0", "health": "OK", "start_time": self.start_time, "topics": [topic]}
        document |= {"remote": self.remote} if self.remote else {}
        return self.body if self.body is not None else json.dumps(document).encode()

    async def serve(self, stream: trio.abc.Stream) -> None:
        async with stream:
            received = b""
            while True:
                data = await stream.receive_some()
                if not data:
                    return
                received += data
                if b"\r\n\r\n" not in received:
                    continue
                target = received.split(b" ", 2)[1].decode()
                received = b""
                self.asked += target.startswith("/stats")
                await self.before()
                status = b"404 Not Found" if target.startswith("/topic/log") else b"200 OK"
                body = self.answer(target)
                await stream.send_all(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))


@asynccontextmanager
async def sampled(
    *nodes: FakeNode, port: int = 0, history: str = "", wall: Callable[[], float] = time.time, **options: Any
) -> AsyncIterator[Sampler]:
    """Return a sampler that asks these nodes now, and then only when told to."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            listeners = await nursery.start(_serve, node, port)
            node.port = listeners[0].socket.getsockname()[1]
        chosen = Options(
            nsqd_http_address=tuple(node.address for node in nodes), sample_interval=3600 * SECOND, **options
        )
        async with opened(chosen) as upstream:
            sampler = Sampler(lambda: chosen, upstream, ActivityLog(), wall=wall)
            if history:
                series_file.load(history, charts=sampler.store, nodes=sampler.kept_nodes)
            await nursery.start(sampler.run)
            yield sampler
            nursery.cancel_scope.cancel()


async def _serve(node: FakeNode, port: int, task_status: trio.TaskStatus[Any]) -> None:
    async def handle(stream: trio.abc.Stream) -> None:
        try:
            await node.serve(stream)
        except trio.BrokenResourceError:
            pass

    await trio.serve_tcp(handle, port, host="127.0.0.1", task_status=task_status)


def health(snapshot: Snapshot) -> dict[str, Health]:
    return {node.hostname: node.health for node in snapshot.nodes}


def test_a_node_that_hangs_delays_nobody() -> None:
    quick, hanging = FakeNode("quick"), FakeNode("hanging")

    async def test() -> None:
        async with sampled(quick, hanging) as sampler:
            await sampler.refresh()
            assert health(sampler.snapshot) == {"quick": Health.OK, "hanging": Health.OK}
            released = trio.Event()
            hanging.before = released.wait
            quick.depth = 7
            began = trio.current_time()
            await sampler.refresh()
            assert trio.current_time() - began < PATIENCE + 0.1
            quick.depth = 9
            began = trio.current_time()
            shown = await sampler.refresh()  # the sampler does not wait for the node again
            assert trio.current_time() - began < PATIENCE
            assert health(shown) == {"quick": Health.OK, "hanging": Health.SLOW}
            found = shown.channel("t", "c")
            assert found is not None
            assert {row.node: row.depth for row in found.nodes}[quick.address] == 9
            released.set()

    run_with_threads(test)


def test_a_node_that_falls_silent_keeps_its_last_numbers_in_every_sum_until_it_answers() -> None:
    quick, silent = FakeNode("quick"), FakeNode("silent")
    quick.depth, silent.depth = 5, 7

    async def test() -> None:
        async with sampled(quick, silent, http_client_request_timeout=SECOND // 5) as sampler:
            await sampler.refresh()
            silent.before = trio.sleep_forever
            quick.depth = 6
            shown = await sampler.refresh()
            assert health(shown) == {"quick": Health.OK, "silent": Health.DOWN}
            topic, channel = shown.topic("t"), shown.channel("t", "c")
            assert topic is not None
            assert channel is not None
            assert {row.node: row.depth for row in channel.nodes} == {quick.address: 6, silent.address: 7}
            assert (channel.depth, shown.totals.depth) == (13, 13)
            assert topic.silent == channel.silent == (silent.address,)
            (marked,) = shown.silent
            assert (marked.node, marked.depth) == (silent.address, 7)
            assert marked.answered_at <= marked.since
            (missing,) = shown.unanswered
            assert missing.where == silent.address
            assert "Client.Timeout exceeded" in missing.raw
            assert "hangs" in missing.advice
            assert [it.what for it in sampler.activity()] == ["node_down"]

            silent.before, silent.depth = trio.lowlevel.checkpoint, 0
            shown = await sampler.refresh()
            assert shown.silent == ()
            assert shown.totals.depth == 6

    run_with_threads(test)


def test_a_topic_that_lives_on_a_silent_node_only_does_not_vanish() -> None:
    lonely = FakeNode("lonely")
    lonely.depth = 50

    async def test() -> None:
        async with sampled(lonely, http_client_request_timeout=SECOND // 5) as sampler:
            await sampler.refresh()
            lonely.before = trio.sleep_forever
            shown = await sampler.refresh()
            topic = shown.topic("t")
            assert topic is not None
            assert not topic.is_inactive
            assert topic.total_depth == 50
            series = sampler.series(channel_series("t", "c"), Span.MINUTES)
            assert series is not None
            assert series.values["depth"][-2:] == (50.0, 50.0)
            assert series.last_known["depth"][-2:] == (0.0, 50.0)

    run_with_threads(test)


def test_a_silent_node_is_forgotten_by_request_only_and_not_while_it_answers() -> None:
    node = FakeNode("one")
    node.depth = 50

    async def test() -> None:
        async with sampled(node, http_client_request_timeout=SECOND // 5) as sampler:
            await sampler.refresh()
            assert not sampler.forget(node.address)
            assert (await sampler.refresh()).totals.depth == 50
            node.before = trio.sleep_forever
            await sampler.refresh()
            assert sampler.forget(node.address)
            shown = await sampler.refresh()
            assert (shown.topics, shown.silent) == ((), ())
            assert health(shown) == {"one": Health.NEVER}  # it is configured, so it is still asked

    run_with_threads(test)


def test_a_node_that_another_has_taken_over_is_not_counted() -> None:
    lost, new = FakeNode("lost"), FakeNode("new")
    lost.depth, new.depth = 5, 7

    async def test() -> None:
        async with sampled(lost, new, http_client_request_timeout=SECOND // 5) as sampler:
            for node in (lost, new):
                node.remote = {"store": "s3://lake/nsq", "name": "orders-1", "state": "owner"}
            assert (await sampler.refresh()).totals.depth == 12, "as long as both answer"
            lost.before = trio.sleep_forever
            shown = await sampler.refresh()
            assert shown.totals.depth == 7
            assert {it.hostname: it.successor for it in shown.nodes} == {"lost": new.address, "new": ""}

    run_with_threads(test)


def test_a_restarted_nsqadmin_knows_what_a_dead_node_had(tmp_path: Path) -> None:
    node, path = FakeNode("one"), str(tmp_path / "history")
    node.depth = 50
    node.remote = {"store": "s3://lake/nsq", "name": "orders-1", "state": "owner"}

    async def test() -> None:
        port = take_port()
        async with sampled(node, port=port) as sampler:
            before = await sampler.refresh()
            await series_file.save(path, {"charts": sampler.store, "nodes": sampler.kept_nodes})
        node.before = trio.sleep_forever
        later = time.time() + 1800
        async with sampled(
            node, port=port, history=path, wall=lambda: later, http_client_request_timeout=SECOND // 5
        ) as sampler:
            shown = sampler.snapshot
            assert health(shown) == {"one": Health.DOWN}
            channel, known = shown.channel("t", "c"), before.channel("t", "c")
            assert channel is not None
            assert known is not None
            assert (channel.depth, channel.silent) == (50, (node.address,))
            assert channel.nodes[0].message_count == known.nodes[0].message_count
            (marked,) = shown.silent
            assert marked.answered_at == before.nodes[0].answered_at
            assert marked.since == marked.answered_at
            assert shown.nodes[0].remote == before.nodes[0].remote is not None

            node.before, node.depth = trio.lowlevel.checkpoint, 80
            shown = await sampler.refresh()
            assert (shown.totals.depth, shown.silent) == (80, ())
            assert [it.what for it in sampler.activity()] == ["node_up"]  # and no restart

    run_with_threads(test)


def test_a_restarted_nsqadmin_does_not_think_that_consumers_have_been_stuck_for_days(tmp_path: Path) -> None:
    node, path = FakeNode("one"), str(tmp_path / "history")
    node.depth = node.in_flight = 5

    async def test() -> None:
        port = take_port()
        async with sampled(node, port=port) as sampler:
            await sampler.refresh()
            await series_file.save(path, {"charts": sampler.store, "nodes": sampler.kept_nodes})
        later = time.time() + 20
        async with sampled(node, port=port, history=path, wall=lambda: later) as sampler:
            shown = await sampler.refresh()
            channel = shown.channel("t", "c")
            assert channel is not None
            assert channel.stall is not None
            assert channel.stall.since == pytest.approx(later - 20, abs=5)
            assert [it.rule for it in shown.findings if it.channel] == []

    run_with_threads(test)


def test_nobody_is_asked_twice_at_once_and_viewers_cost_nothing() -> None:
    node = FakeNode("one")

    async def test() -> None:
        async with sampled(node) as sampler:
            await sampler.refresh()
            asked = node.asked
            for _ in range(100):
                assert sampler.snapshot.topics
            assert node.asked == asked

    run_with_threads(test)


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'{"topics":[{}]}',
        b'{"topics":[{"topic_name":"t","depth":"many"}]}',
        b'{"topics":[{"topic_name":"t","channels":[{"channel_name":"c","depth":[1]}]}]}',
        b'{"topics":{"a":1}}',
        b'{"topics":[{"topic_name":"t","depth":NaN}]}',
        b'{"topics":[{"topic_name":"t","depth":1e999}]}',
        b'{"topics":[{"topic_name":"t","expires_at":1%b}]}' % (b"0" * 400),
    ],
)
def test_an_answer_that_is_none_is_a_node_that_is_down(body: bytes) -> None:
    good, odd = FakeNode("good"), FakeNode("odd")
    odd.body = body

    async def test() -> None:
        async with sampled(good, odd) as sampler:
            assert health(await sampler.refresh()) == {"good": Health.OK, "odd": Health.NEVER}

    run_with_threads(test)


def test_eight_times_the_topics_of_a_big_cluster_are_read() -> None:
    topics = unless_quick(8, quick=2) * 2_000
    node = FakeNode("big")
    node.body = BigNode(topics, 3, 0.1).stats(clients=False)
    options = Options(http_client_request_timeout=60 * SECOND)

    async def test() -> None:
        async with trio.open_nursery() as serving, opened(options) as upstream:
            (listener,) = await serving.start(_serve, node, 0)
            port = listener.socket.getsockname()[1]
            asked = AskedNode(announced=Announced("", "127.0.0.1", 4150, port), has_history=False)
            stats = Stats(upstream, time.time, most=options.max_cluster_size)
            async with trio.open_nursery() as asking:
                stats.start(asking, [asked], has_clients=False, topics=())
            assert asked.answer is not None, asked.error
            assert len(asked.answer.topics) == topics
            serving.cancel_scope.cancel()

    trio.run(test)  # a clock that jumps would not wait until megabytes have passed through a socket


def test_a_restart_is_an_event_and_no_negative_rate() -> None:
    node = FakeNode("one")
    node.depth = 100

    async def test() -> None:
        async with sampled(node) as sampler:
            await sampler.refresh()
            node.depth, node.start_time = 3, 2
            shown = await sampler.refresh()
            found = shown.channel("t", "c")
            assert found is not None
            assert found.rates.incoming is None
            assert "nsqd_restarted" in {it.what for it in sampler.activity()}

    run_with_threads(test)


def test_who_keeps_no_history_is_known() -> None:
    node = FakeNode("go")

    async def test() -> None:
        async with sampled(node) as sampler:
            assert [it.has_history for it in (await sampler.refresh()).nodes] == [False]

    run_with_threads(test)


class SlowReading:
    """Nodes answer at once, and all answers have arrived before one of them has been read."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    async def get_document(self, address: str, target: str) -> Document:
        await trio.lowlevel.checkpoint()
        return Document({"topics": []}, size=self.sizes.get(address, 60_000), weight=0, made_at=None, withheld="")

    async def in_slices(self, work: Slices[T]) -> T:
        await trio.testing.wait_all_tasks_blocked()
        return at_once(work)


def test_answers_that_are_read_at_the_same_time_count_together() -> None:
    nodes = [AskedNode(announced=Announced("", f"n{it}", 4150, 4151), has_history=False) for it in range(2)]

    async def test() -> None:
        stats = Stats(cast(Upstream, SlowReading()), time.time, most=100_000)
        async with trio.open_nursery() as nursery:
            await stats.start(nursery, nodes, has_clients=False, topics=()).wait()
        assert [node.answer is None for node in nodes].count(True) == 1
        (refused,) = [node.error for node in nodes if node.error is not None]
        assert "together" in refused.not_read

    run_with_threads(test)


class Asking:
    """Nodes that are asked for their statistics, with a bound of 100,000 bytes for all of them."""

    def __init__(self, *names: str) -> None:
        self.upstream = SlowReading()
        self.stats = Stats(cast(Upstream, self.upstream), time.time, most=100_000)
        self.nodes = [AskedNode(announced=Announced("", name, 4150, 4151), has_history=False) for name in names]

    async def ask(self, *sizes: int) -> list[bool]:
        """Return for each node whether it was read, if the nodes answer with this many bytes. 0: it is not asked."""
        self.upstream.sizes = {
            node.announced.address: size for node, size in zip(self.nodes, sizes, strict=True) if size
        }
        async with trio.open_nursery() as nursery:
            asked = [node for node in self.nodes if node.announced.address in self.upstream.sizes]
            for node in asked:
                node.not_before = 0.0
            await self.stats.start(nursery, asked, has_clients=False, topics=()).wait()
        return [node.answer is not None for node in self.nodes]


def test_newcomer_makes_way_for_a_known_node_that_has_grown() -> None:
    async def test() -> None:
        asking = Asking("known", "new")
        assert await asking.ask(40_000, 0) == [True, False]
        assert await asking.ask(40_000, 50_000) == [True, True]
        assert await asking.ask(60_000, 0) == [True, False]
        (known, new) = asking.nodes
        assert known.error is None
        assert new.error is not None
        assert "together" in new.error.not_read
        assert await asking.ask(60_000, 50_000) == [True, False]
        assert await asking.ask(60_000, 30_000) == [True, True]

    run_with_threads(test)


def test_newcomer_makes_way_while_its_answer_is_read() -> None:
    async def test() -> None:
        asking = Asking("known", "new")
        assert await asking.ask(40_000, 0) == [True, False]
        asking.nodes.reverse()  # the node that is asked first answers first
        assert await asking.ask(50_000, 60_000) == [False, True]

    run_with_threads(test)
