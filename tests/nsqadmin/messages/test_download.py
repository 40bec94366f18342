"""The file of all hits: step by step, as fast as its reader takes it, with a last line that says where it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import trio
from starlette.requests import Request

from nsqadmin.messages.download import lines
from nsqadmin.messages.endpoints import routes
from nsqadmin.messages.filters import parse_filter
from nsqadmin.messages.model import Message, SearchResult
from nsqadmin.messages.searching import Search
from tests.nsqadmin.histories import Histories, History
from tests.nsqadmin.messages.test_searching import ANYBODY, orders

BEGAN = 1_700_000_000.0


class Reading:
    """Reads the file for a search, and notes how many hits each step had."""

    def __init__(self, cluster: Histories, *, now: float = 1e12, **how: Any) -> None:
        self.steps: list[int] = []
        self.documents: list[Any] = []
        self.ahead: list[int] = []  # hits that had been found and not been taken when a step began
        trio.run(self._read, cluster, how.pop("most", None), now, how)

    async def _read(self, cluster: Histories, most: int | None, now: float, how: Any) -> None:
        async def step(search: Search) -> SearchResult:
            self.ahead.append(sum(self.steps) - len(self.documents))
            found = await cluster.searcher.search(cluster.picture, search)
            self.steps.append(len(found.messages))
            return found

        search = Search(topic="t", wanted=parse_filter(how.pop("wanted", "")), identity=ANYBODY, **how)
        async for piece in lines(step, search, most=most, began=now):
            self.documents += map(json.loads, piece.splitlines())

    @property
    def sequences(self) -> list[int]:
        return [it["sequence"] for it in self.documents[:-1]]

    @property
    def end(self) -> Any:
        return self.documents[-1]["end"]


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin.messages.download._STEP", 70)


@pytest.mark.usefixtures("_small_steps")
def test_a_long_history_is_never_in_memory_as_a_whole() -> None:
    file = Reading(Histories(n1=History(orders(500))))
    assert file.sequences == list(range(499, -1, -1))
    assert file.steps == [70] * 7 + [10]
    assert set(file.ahead) == {0}
    assert (file.end["hits"], file.end["looked"], file.end["is_whole"]) == (500, 500, True)


@pytest.mark.usefixtures("_small_steps")
def test_the_first_hits_alone() -> None:
    file = Reading(Histories(n1=History(orders(500))), most=100)
    assert file.sequences == list(range(499, 399, -1))
    assert (file.end["hits"], file.end["goes_on"], file.end["is_whole"]) == (100, True, False)


@pytest.mark.usefixtures("_small_steps")
def test_a_file_does_not_follow_a_topic_for_ever() -> None:
    class Growing(Histories):
        async def get_json(self, address: str, target: str) -> Any:
            self.nodes[address].bodies += orders(100)
            return await super().get_json(address, target)

    file = Reading(Growing(n1=History(orders(100))), place="earliest", now=BEGAN + 99)
    assert file.sequences[:100] == list(range(100))
    assert len(file.sequences) < 300
    assert file.end["goes_on"]


def test_what_retention_has_removed_is_in_the_last_line() -> None:
    file = Reading(Histories(n1=History(orders(3000), expires_at_read=2800)), wanted="order_id = 2900")
    assert [(gap["first"], gap["end"]) for gap in file.end["gaps"]] == [(0, 2800)]


def test_a_file_ends_with_the_session_of_its_reader() -> None:
    """Otherwise, who has been logged out or blocked would get the rest of the history."""
    sent: list[dict[str, Any]] = []

    class Ending:
        """A session that ends once something has been sent."""

        def seconds_left(self, *, until_asking: bool) -> float:
            return 3600.0 if len(sent) < 3 else 0.0

        def watch(self, close: Callable[[], None]) -> Callable[[], None]:
            self.close = close
            return lambda: None

    messages, view, session = Mock(), Mock(), Ending()
    hit = Message(node="n1:4151", id="0" * 16, timestamp=1.0, size=1, body=b"x", sequence=1)
    messages.search = AsyncMock(return_value=SearchResult(messages=(hit,), cursor="", goes_on=True, looked=1, total=9))
    (search,) = [it.handler for it in routes(messages, view) if it.path == "/api/v2/search/{topic}"]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(30)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 3:
            session.close()
        assert len(sent) < 50, "it goes on"

    async def run() -> None:
        scope = {
            "type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"format=ndjson",
            "path_params": {"topic": "t"}, "state": {"identity": ANYBODY, "lease": session},
        }  # fmt: skip
        await (await search(Request(scope)))(scope, receive, send)

    asyncio.run(run())
    assert len(sent) == 4
    assert b'"end"' not in b"".join(it.get("body", b"") for it in sent)
