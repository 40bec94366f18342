"""Requests to many nodes: a node that answers nonsense is named, and the others' answers count."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest
import trio

from nsqadmin.options import Options
from nsqadmin.upstream.client import Document, Upstream, UpstreamError
from nsqadmin.upstream.queries import Found, Queries, TotalFailure
from nsqadmin.upstream.slices import Slices, at_once

T = TypeVar("T")

INFO = {"hostname": "good", "broadcast_address": "127.0.0.1", "http_port": 1, "tcp_port": 2}
STATS = {"topics": [{"topic_name": "t", "channels": [{"channel_name": "c"}]}]}
PRODUCER = {**INFO, "remote_address": "127.0.0.1:9", "topics": ["t"], "tombstones": [False]}

NONSENSE: list[Any] = [
    None,
    [],
    "<html>",
    {"topics": 5, "channels": 5, "producers": 5, "http_port": "x"},
    {"topics": [{}], "channels": {"a": 1}, "producers": [5], "http_port": [], "broadcast_address": "b"},
    {"topics": [{"topic_name": "t", "channels": [{}]}], "producers": [{"http_port": "x"}], "tcp_port": "x"},
    {"topics": [{"topic_name": "t", "depth": "x"}], "producers": "x", "tcp_port": {}},
]


class FakeUpstream:
    """`good:1` answers correctly, and `odd:1` with what it is given."""

    def __init__(self, odd: Any, *, weight: int = 0) -> None:
        self.weight = weight
        self._odd = odd

    async def in_slices(self, work: Slices[T]) -> T:
        return at_once(work)

    async def get_document(self, address: str, target: str, *, is_lookupd: bool) -> Document:
        value = await self.get_json(address, target)
        return Document(value, size=0, weight=self.weight, made_at=None, withheld="")

    async def get_json(self, address: str, target: str) -> Any:
        await trio.lowlevel.checkpoint()
        if address == "odd:1":
            return self._odd
        return {
            "/info": INFO,
            "/stats": STATS,
            "/topics": {"topics": ["t"]},
            "/lookup": {"producers": [PRODUCER]},
            "/nodes": {"producers": [PRODUCER]},
            "/channels": {"channels": ["c"]},
        }[target.partition("?")[0]]


def asked(odd: Any, ask: Callable[[Queries], Awaitable[Found[T]]], **options: Any) -> Found[T]:
    chosen = Options(**options)

    async def run() -> Found[T]:
        return await ask(Queries(lambda: chosen, cast(Upstream, FakeUpstream(odd))))

    return trio.run(run)


@pytest.mark.parametrize("odd", NONSENSE, ids=json.dumps)
def test_an_nsqlookupd_that_talks_nonsense_is_one_error(odd: Any) -> None:
    both = {"lookupd_http_address": ("odd:1", "good:1")}
    nodes = asked(odd, Queries.nodes, **both)
    assert [node.hostname for node, _ in nodes.value] == ["good"]
    assert "odd:1" in nodes.errors[0]
    producers = asked(odd, lambda it: it.topic_producers("t"), **both)
    assert [it.hostname for it in producers.value] == ["good"]
    assert asked(odd, Queries.topics, **both).value[-1] == "t"


@pytest.mark.parametrize("odd", NONSENSE, ids=json.dumps)
def test_an_nsqd_that_talks_nonsense_is_one_error(odd: Any) -> None:
    both = {"nsqd_http_address": ("odd:1", "good:1")}
    topics = asked(odd, Queries.topics, **both)
    assert topics.value == ["t"]
    assert "odd:1" in topics.errors[0]
    assert [it.hostname for it in asked(odd, lambda it: it.topic_producers("t"), **both).value][-1] == "good"
    assert "good" in [node.hostname for node, _ in asked(odd, Queries.nodes, **both).value]


def test_only_nonsense_is_a_failure() -> None:
    with pytest.raises(TotalFailure, match="failed to query any nsqlookupd"):
        asked([], Queries.nodes, lookupd_http_address=("odd:1",))


def test_what_is_asked_before_an_action_may_be_nonsense() -> None:
    async def run() -> None:
        queries = Queries(Options, cast(Upstream, FakeUpstream({"broadcast_address": "b", "http_port": "x"})))
        with pytest.raises(UpstreamError, match="odd:1: cannot be read"):
            await queries.info("odd:1")

    trio.run(run)
