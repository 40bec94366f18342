"""What nsqadmin knows of the directory, sweep after sweep."""

from __future__ import annotations

from typing import Any, cast

import trio
import trio.testing

from nsqadmin.cluster.node_stats import read_stats
from nsqadmin.options import Options
from nsqadmin.upstream.asked import AskedLookupd, AskedNode
from nsqadmin.upstream.census import Census
from nsqadmin.upstream.client import Document, Upstream, UpstreamError
from nsqadmin.upstream.discovery import Announced
from nsqadmin.upstream.slices import Slices, at_once

LOOKUPDS = ("l1:4161", "l2:4161")


class FakeUpstream:
    """nsqlookupds that know one topic, which no node has, and list `nodes`."""

    def __init__(self, **channels: list[str]) -> None:
        self.channels = {"l1:4161": channels["l1"], "l2:4161": channels["l2"]}
        self.nodes: dict[str, Any] = {"producers": []}
        self.index = ""
        self.waiting = 0
        self.changed = trio.Event()

    async def get_document(self, address: str, target: str, *, is_lookupd: bool) -> Document:
        return Document(
            await self.get_json(address, target, is_lookupd=is_lookupd),
            size=0,
            weight=0,
            made_at=None,
            withheld="",
            index=self.index,
        )

    async def next_index(self, address: str, target: str, *, index: str, wait: float) -> str:
        assert (target, index) == ("/nodes", self.index)
        self.waiting += 1
        with trio.move_on_after(wait):
            await self.changed.wait()
        self.waiting -= 1
        return self.index

    def change(self, index: str) -> None:
        self.index = index
        self.changed.set()
        self.changed = trio.Event()

    async def get_json(self, address: str, target: str, *, is_lookupd: bool) -> Any:
        await trio.lowlevel.checkpoint()
        answers = {
            "/nodes?missing=true": self.nodes,
            "/topics": {"topics": ["t"]},
            "/info": {"version": "1.3.0"},
            "/channels?topic=t": {"channels": self.channels[address]},
        }
        return answers[target]

    async def in_slices(self, work: Slices[Any]) -> Any:
        return at_once(work)


def test_channels_of_inactive_topics_are_those_that_are_registered_now() -> None:
    upstream = FakeUpstream(l1=["a", "b"], l2=["b", "c"])
    options = Options(lookupd_http_address=LOOKUPDS)
    census = Census(lambda: options, cast(Upstream, upstream), lambda: 0.0)

    async def channels() -> tuple[str, ...]:
        async with trio.open_nursery() as nursery:
            await census.start(nursery).wait()
        return census.directory().channels["t"]

    async def run() -> None:
        assert await channels() == ("a", "b", "c")
        upstream.channels = {"l1:4161": ["b"], "l2:4161": []}
        assert await channels() == ("b",)

    trio.run(run)


PRODUCER = {"broadcast_address": "n1", "hostname": "n1", "tcp_port": 4150, "http_port": 4151, "topics": ["t"]}


def left_by_its_node(missing: dict[str, Any]) -> Census:
    """Return what a census knows of a node that has answered, and left its nsqlookupd 30 minutes ago."""
    upstream = FakeUpstream(l1=[], l2=[])
    options = Options(lookupd_http_address=("l1:4161",))
    census = Census(lambda: options, cast(Upstream, upstream), lambda: trio.current_time())

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            await census.start(nursery).wait()
        census.settle()

    async def run() -> None:
        upstream.nodes = {"producers": [PRODUCER]}
        await ask()
        node = census.nodes["n1:4151"]
        node.answer = read_stats("n1:4151", {"topics": [{"topic_name": "t", "depth": 50}]}, at=0.0)
        node.succeeded(0.1, 0.0)
        upstream.nodes = {"producers": [], "missing": [{**PRODUCER, **missing}]}
        await ask()
        node.failed(UpstreamError("refused"), trio.current_time())
        await trio.sleep(1800)
        await ask()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    return census


def test_a_dead_node_stays_with_its_last_answer() -> None:
    (node,) = left_by_its_node({"drained": False, "retired": False}).nodes.values()
    answer = node.last_answer()
    assert answer is not None
    assert (answer.depth, answer.is_silent) == (50, True)
    assert node.announced.sources == []


def test_a_dead_node_is_asked_seldom_until_it_registers_again() -> None:
    async def run() -> None:
        node = AskedNode(announced=Announced("h", "n1", 4150, 4151), left_at=0.0)
        node.failed(UpstreamError("refused"), 0.0)
        assert node.not_before > trio.current_time() + 10
        node.announce(node.announced)
        assert node.not_before == 0.0
        node.failed(UpstreamError("refused"), 0.0)
        assert node.not_before == 0.0

    trio.run(run)


def test_a_node_that_was_shut_down_may_come_back_with_what_it_had() -> None:
    assert "n1:4151" in left_by_its_node({"drained": True, "retired": False}).nodes


def test_a_node_that_has_retired_is_forgotten() -> None:
    assert left_by_its_node({"drained": True, "retired": True}).nodes == {}


def test_nodes_that_come_and_go_under_new_names_are_bounded() -> None:
    options = Options(lookupd_http_address=("l1:4161",), max_nodes=2)
    census = Census(lambda: options, cast(Upstream, FakeUpstream(l1=[], l2=[])), lambda: 0.0)
    census.lookupds["l1:4161"] = lookupd = AskedLookupd()
    lookupd.succeeded(0.1, 0.0)

    async def run() -> None:
        for number in range(5):
            lookupd.producers = [Announced("h", f"n{number}", 4150, 4151)]
            census.settle()
            census.nodes[f"n{number}:4151"].answer = read_stats("n", {"topics": []}, at=0.0)
            await trio.sleep(1)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert set(census.nodes) == {"n2:4151", "n3:4151", "n4:4151"}


def test_a_change_of_the_nodes_makes_the_census_due_at_once_but_not_more_than_once_a_second() -> None:
    upstream = FakeUpstream(l1=[], l2=[])
    upstream.index = "7"
    news: list[float] = []
    options = Options(lookupd_http_address=("l1:4161",))
    census = Census(
        lambda: options, cast(Upstream, upstream), lambda: 0.0, on_news=lambda: news.append(trio.current_time() - began)
    )
    began = 0.0

    async def run() -> None:
        nonlocal began
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            await census.start(nursery).wait()
            await trio.testing.wait_all_tasks_blocked()
            assert upstream.waiting == 1
            assert not census.is_due
            await trio.sleep(3)
            upstream.change("8")
            await trio.testing.wait_all_tasks_blocked()
            assert (news, census.is_due, census.has_news) == ([3], True, True)
            await census.start(nursery).wait()
            await trio.testing.wait_all_tasks_blocked()
            upstream.change("9")
            await trio.sleep(2)
            assert (news, census.is_due) == ([3, 4], True)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_an_nsqlookupd_without_an_index_is_not_waited_for() -> None:
    upstream = FakeUpstream(l1=[], l2=[])
    options = Options(lookupd_http_address=LOOKUPDS)
    census = Census(lambda: options, cast(Upstream, upstream), lambda: 0.0)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await census.start(nursery).wait()
        assert upstream.waiting == 0

    trio.run(run)
