"""A node's answers about history with one odd field each: an error of that node, and its page is still served."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self, cast

import pytest
import trio

from nsqadmin import numbers
from nsqadmin.access import Identity
from nsqadmin.cluster.recording import to_json
from nsqadmin.messages.masking import Masking
from nsqadmin.messages.model import Page, ReplayPlan, page_json
from nsqadmin.messages.publishing import Publisher
from nsqadmin.messages.reading import Reader
from nsqadmin.upstream.client import Streamed, Upstream
from nsqadmin.upstream.slices import Slices
from tests.nsqadmin.whole.test_odd_answers import ODD, places, with_odd
from tests.support.picture import channel, channel_node, node, snapshot, topic

SAID: dict[str, Any] = {
    "log": {"first": 1, "next": 5, "first_time": 1, "last_time": 2},
    "position": {"waiting": [[1, 1]]},
    "lines": [
        {"id": "a", "sequence": 1, "timestamp": 1_700_000_000_000_000_000, "body": "x", "delay_ms": 5},
        {"id": "b", "sequence": 2, "timestamp": 1_700_000_000_000_000_000, "body_base64": "eA=="},
        {"gap": [3, 4], "reason": "damaged"},
        {"next": 5},
    ],
}


class Pieces:
    """An iterator that is not a generator, so it need not be closed."""

    def __init__(self, lines: list[bytes]) -> None:
        self._pieces = iter([b"\n".join(lines)])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


class FakeUpstream:
    def __init__(self, said: Any) -> None:
        self._said = said

    async def get_json(self, address: str, target: str) -> Any:
        await trio.lowlevel.checkpoint()
        return self._said["log" if target.startswith("/topic/log") else "position"]

    @asynccontextmanager
    async def stream(self, address: str, target: str, **_: object) -> AsyncIterator[Streamed]:
        lines = self._said["lines"]
        yield Streamed(200, Pieces([json.dumps(it).encode() for it in (lines if isinstance(lines, list) else [lines])]))


PICTURE = snapshot(topic(channel(channel_node())), nodes=(node(),))


def read(said: Any) -> tuple[Page, Page]:
    async def run() -> tuple[Page, Page]:
        reader = Reader(cast(Upstream, FakeUpstream(said)), Masking())
        return (
            await reader.page(PICTURE, "t", identity=Identity()),
            await reader.peek(PICTURE, "t", "c", identity=Identity()),
        )

    return trio.run(run)


def test_a_complete_answer_is_read() -> None:
    page, peeked = read(SAID)
    assert [it.id for it in page.messages] == ["a", "b"]
    assert len(page.gaps) == 1
    assert not page.logs[0].reason
    assert peeked.messages


@pytest.mark.parametrize("way", list(places(SAID)), ids=lambda way: ".".join(map(str, way)))
def test_what_is_not_is_told(way: tuple[Any, ...]) -> None:
    for odd in ODD:
        for page in read(with_odd(SAID, way, odd)):
            page_json(page, most=100)
            for message in page.messages:
                numbers.clock(message.timestamp, 1.0)
                numbers.moment(message.timestamp)
            for log in page.logs:
                numbers.clock(log.first_time, 1.0)
                numbers.exact(log.next)
            for gap in page.gaps:
                numbers.exact(gap.first)


class PostingUpstream(FakeUpstream):
    async def post(self, address: str, target: str, body: bytes = b"") -> bytes:
        await trio.lowlevel.checkpoint()
        return b"OK"


@pytest.mark.parametrize("way", list(places(SAID["lines"])), ids=lambda way: ".".join(map(str, way)))
def test_replay_of_an_odd_history_has_a_receipt(way: tuple[Any, ...]) -> None:
    plan = ReplayPlan(topic="t", node="n1:4151", first=1, end=5, target="u", count=4, title="", consequences=())
    for odd in ODD:
        upstream = cast(Upstream, PostingUpstream({**SAID, "lines": with_odd(SAID["lines"], way, odd)}))
        receipt = trio.run(Publisher(upstream, Reader(upstream, Masking())).replay, plan)
        json.dumps(to_json(receipt))


class EndlessPieces:
    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return json.dumps(SAID["lines"][0]).encode() + b"\n"

    def __aiter__(self) -> Self:
        return self


class EndlessUpstream(FakeUpstream):
    @asynccontextmanager
    async def stream(self, address: str, target: str, **_: object) -> AsyncIterator[Streamed]:
        yield Streamed(200, EndlessPieces())


def test_a_history_without_end_is_read_no_further_than_a_page() -> None:
    async def peek() -> Page:
        with trio.fail_after(30):
            reader = Reader(cast(Upstream, EndlessUpstream(SAID)), Masking())
            return await reader.peek(PICTURE, "t", "c", identity=Identity(), limit=20)

    page = trio.run(peek)
    assert len(page.messages) == 20
    assert not page.logs[0].reason


class SlicingUpstream(FakeUpstream):
    """Counts the pauses of work that is done in slices."""

    pauses = 0

    async def in_slices(self, work: Slices[Any]) -> Any:
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            self.pauses += 1


def test_a_long_line_is_parsed_in_slices() -> None:
    odd = {"id": "a", "sequence": 1, "timestamp": 1, "body": "x" * 100_000, "more": [{}] * 200_000}
    upstream = SlicingUpstream({**SAID, "lines": [odd, {"next": 2}]})

    async def lines() -> list[Any]:
        reader = Reader(cast(Upstream, upstream), Masking())
        async with aclosing(reader.lines("n", "t", "1", "")) as found:
            return [it async for it in found]

    assert trio.run(lines) == [odd, {"next": 2}]
    assert upstream.pauses > 20
