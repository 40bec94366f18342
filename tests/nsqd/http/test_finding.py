"""GET /message: finding a message by its id."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from nsqcommon.http_api import HttpError
from nsqd.broker.batch import Receipt
from nsqd.http import HistoryReads
from nsqd.http.finding import FindEndpoint
from nsqd.http.history import MOST_READERS
from nsqd.log.history import LogHistory
from tests.nsqd.http.conftest import Nsqd, code
from tests.nsqd.http.fake_history import at_once
from tests.nsqd.log.batches import make_batch
from tests.nsqd.log.harness import OpenStore, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    """Make a topic `t` with the ids 1000 to 1002 and 2000, and one `u` with 1500, 1501 and an id of another node."""
    with opened(tmp_path) as it:
        append(it, "t", 0, 1000, 3)
        append(it, "t", 3, 2000, 1)
        append(it, "u", 0, 7 << 54, 1)
        append(it, "u", 1, 1500, 2)
        it.sync()
        yield it


def append(store: OpenStore, topic: str, sequence: int, base_id: int, count: int) -> None:
    log = store.log(topic)
    log.append(make_batch(sequence, [b"x"] * count, base_id=base_id), Receipt())
    store.store.write_logs()


def with_topics(reading: HistoryReads) -> Nsqd:
    nsqd = Nsqd(reading)
    for topic in ("t", "u", "in_memory#ephemeral"):
        nsqd.post(f"/topic/create?topic={topic.replace('#', '%23')}")
    return nsqd


@pytest.fixture
def nsqd(store: OpenStore) -> Nsqd:
    return with_topics(HistoryReads(LogHistory(store.store), at_once))


def places(nsqd: Nsqd, message_id: int, more: str = "") -> list[tuple[str, int]]:
    answer = nsqd.get(f"/message?id={message_id:016x}{more}")
    assert answer.status == 200, answer
    document = json.loads(answer.body)
    assert document["unread"] == []
    return [(it["topic"], it["sequence"]) for it in document["messages"]]


@pytest.mark.parametrize(
    ("message_id", "expected"),
    [(1000, [("t", 0)]), (1002, [("t", 2)]), (2000, [("t", 3)]), (1003, []), (999, []), (1 << 63, [])],
)
def test_a_message_is_found_in_any_topic(nsqd: Nsqd, message_id: int, expected: list[tuple[str, int]]) -> None:
    assert places(nsqd, message_id) == expected


def test_in_a_named_topic_it_is_found_also_from_before_the_node_got_another_number(nsqd: Nsqd) -> None:
    assert places(nsqd, 1501) == []
    assert places(nsqd, 1501, "&topic=u") == [("u", 2)]
    assert places(nsqd, 1501, "&topic=t") == []


def test_the_answer_names_the_log(nsqd: Nsqd, store: OpenStore) -> None:
    (found,) = json.loads(nsqd.get("/message?id=00000000000003e8").body)["messages"]
    assert found["log"] == store.log("t").log_id


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ("", "MISSING_ARG_ID"),
        ("id=3e8", "INVALID_ARG_ID"),
        ("id=00000000000003E8", "INVALID_ARG_ID"),
        ("id=%00", "INVALID_ARG_ID"),
        ("id=00000000000003e8&topic=%20", "INVALID_ARG_TOPIC"),
        ("id=00000000000003e8&topic=in_memory%23ephemeral", "EPHEMERAL_TOPIC"),
    ],
)
def test_senseless_requests_are_refused(nsqd: Nsqd, query: str, refusal: str) -> None:
    answer = nsqd.get(f"/message?{query}")
    assert (answer.status, json.loads(answer.body)["message"]) == (400, refusal)


def test_an_unknown_topic_is_refused(nsqd: Nsqd) -> None:
    answer = nsqd.get("/message?id=00000000000003e8&topic=none")
    assert (answer.status, answer.body) == (404, code("TOPIC_NOT_FOUND"))


def test_topics_that_the_disk_refuses_to_read_are_named() -> None:
    past = Mock(first=0, next=1)
    past.sequence_in_order.side_effect = OSError(errno.EIO, "Input/output error")
    history = Mock(find=Mock(return_value=past), node="n1")
    answer = json.loads(with_topics(HistoryReads(history, at_once)).get("/message?id=00000000000003e8").body)
    assert (answer["messages"], answer["unread"]) == ([], ["t", "u", "in_memory#ephemeral"])


def test_searches_count_as_readers(store: OpenStore) -> None:
    reading = HistoryReads(LogHistory(store.store), at_once)
    nsqd = with_topics(reading)
    reading.readers = MOST_READERS
    answer = nsqd.get("/message?id=00000000000003e8")
    assert (answer.status, answer.body) == (503, code("TOO_MANY_READERS"))
    reading.readers = 0
    assert places(nsqd, 1000) == [("t", 0)]
    assert reading.readers == 0


def test_searches_of_whole_logs_leave_threads_to_others() -> None:
    """A log of a terabyte takes minutes, and there are four threads for all that read."""

    async def run() -> None:
        release = asyncio.Event()

        async def in_thread(look: Callable[[], Any]) -> Any:
            await release.wait()
            return look()

        reading = HistoryReads(Mock(find=Mock(return_value=None), node="n1"), in_thread)
        find = FindEndpoint(Mock(topics={"t": Mock()}), reading).find
        whole = Mock(query=lambda: {"id": "0" * 16, "topic": "t"}, is_gone=False)
        with patch("nsqd.http.finding.find_topic", lambda broker, name: Mock(name=name)):
            first = [asyncio.ensure_future(find(whole)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(HttpError, match="TOO_MANY_READERS"):
                await find(whole)
            quick = asyncio.ensure_future(find(Mock(query=lambda: {"id": "0" * 16}, is_gone=False)))
            release.set()
            assert [it.status for it in await asyncio.gather(*first, quick)] == [200] * 3
            assert (await find(whole)).status == 200

    asyncio.run(run())


def test_topics_not_reached_before_a_stop_are_named(store: OpenStore) -> None:
    reading = HistoryReads(LogHistory(store.store), at_once)
    nsqd = with_topics(reading)
    reading.stopping = True
    answer = json.loads(nsqd.get("/message?id=00000000000003e8").body)
    assert (answer["messages"], answer["unread"]) == ([], ["t", "u", "in_memory#ephemeral"])
