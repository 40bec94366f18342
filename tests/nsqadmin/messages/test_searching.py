"""Searching the history of all nodes: order, bounded steps, cursors, nodes that hang, and what retention removes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqadmin.access import ALL_RIGHTS, Identity
from nsqadmin.messages.filters import parse_filter
from nsqadmin.messages.masking import parse_masks
from nsqadmin.messages.model import SearchResult
from nsqadmin.messages.searching import Search, Searcher
from nsqadmin.messages.walk import BadCursor, parse_cursor
from nsqadmin.upstream.client import UpstreamError
from tests.nsqadmin.histories import Histories, History
from tests.support.examples import examples
from tests.support.quick import unless_quick

ANYBODY = Identity(roles=(ALL_RIGHTS,))


def orders(count: int) -> list[bytes]:
    return [b'{"order_id":%d}' % number for number in range(count)]


def search(cluster: Histories, wanted: str = "", **how: Any) -> SearchResult:
    asked = Search(topic="t", wanted=parse_filter(wanted), **{"identity": ANYBODY, "seconds": 30.0, **how})

    async def run() -> SearchResult:
        return await cluster.searcher.search(cluster.picture, asked)

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def steps(cluster: Histories, wanted: str = "", **how: Any) -> Iterator[SearchResult]:
    """Search until there is nothing more to look at."""
    found = search(cluster, wanted, **how)
    yield found
    while found.goes_on:
        found = search(cluster, wanted, **how, cursor=found.cursor)
        yield found


def ids(found: SearchResult) -> list[tuple[str, int | None]]:
    return [(message.node[:2], message.sequence) for message in found.messages]


def test_a_message_far_back_is_found() -> None:
    count = unless_quick(20_000, quick=6_000)
    found = search(Histories(n1=History(orders(count))), "order_id = 123")
    assert ids(found) == [("n1", 123)]
    assert (found.looked, found.total, found.is_whole) == (count, count, True)


def test_hits_come_in_the_order_of_time_over_all_nodes() -> None:
    cluster = Histories(n1=History(orders(3000)), n2=History(orders(1500), pace=2.0))
    times = [message.timestamp for message in search(cluster, "@sequence < 40", limit=100).messages]
    assert len(times) == 80
    assert times == sorted(times, reverse=True)


def test_without_a_filter_the_newest_are_read_and_nothing_else() -> None:
    cluster = Histories(n1=History(orders(9000)))
    found = search(cluster, limit=5)
    assert [sequence for _, sequence in ids(found)] == [8999, 8998, 8997, 8996, 8995]
    assert cluster.nodes["n1:4151"].read == [(8995, 9000)]
    assert found.goes_on


@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    paces=st.lists(st.sampled_from([0.3, 1.0, 7.0]), min_size=3, max_size=3),
    limit=st.integers(1, 20),
    place=st.sampled_from(["latest", "earliest"]),
)
@settings(max_examples=examples(40), deadline=None)
def test_steps_that_continue_each_other_find_each_message_once_and_in_order(
    counts: list[int], paces: list[float], limit: int, place: str
) -> None:
    histories = {f"n{at}": History(orders(count), pace=paces[at]) for at, count in enumerate(counts)}
    found = [it for step in steps(Histories(**histories), limit=limit, place=place) for it in step.messages]
    times = [message.timestamp for message in found]
    assert sorted((it.node, it.sequence or 0) for it in found) == [
        (f"n{at}:4151", sequence) for at, count in enumerate(counts) for sequence in range(count)
    ]
    assert times == sorted(times, reverse=place == "latest")


def test_a_search_from_the_oldest_goes_onwards() -> None:
    found = search(Histories(n1=History(orders(3000))), "order_id >= 2000", place="earliest", limit=2)
    assert [sequence for _, sequence in ids(found)] == [2000, 2001]


def test_a_node_that_hangs_in_the_middle_is_named_and_the_others_are_searched() -> None:
    cluster = Histories(n1=History(orders(3000), hangs_from=2000), n2=History(orders(3000)))
    found = search(cluster, "order_id = 7")
    assert ids(found) == [("n2", 7)]
    assert [(log.node, log.reason) for log in found.silent] == [("n1:4151", "it has sent nothing for 5 s")]
    assert not found.is_whole
    assert found.looked < found.total
    cluster.nodes["n1:4151"].hangs_from = None
    (again,) = steps(cluster, "order_id = 7", cursor=found.cursor)
    assert ids(again) == [("n1", 7)]
    assert again.is_whole


def test_a_step_ends_when_its_time_is_up_and_says_how_far_it_has_looked() -> None:
    cluster = Histories(n1=History(orders(3000), hangs_from=2500))
    found = search(cluster, "nothing", seconds=2.0)
    assert found.looked == 500
    assert found.reached == 1_700_000_000.0 + 2500
    assert not found.is_whole


def test_what_retention_removes_meanwhile_is_a_gap() -> None:
    cluster = Histories(n1=History(orders(3000), expires_at_read=2800))
    found = search(cluster, "order_id = 2900")
    assert ids(found) == [("n1", 2900)]
    assert [(gap.first, gap.end, gap.reason) for gap in found.gaps] == [(0, 2800, "removed by retention")]
    assert not found.goes_on


def test_an_answer_that_ends_early_is_continued() -> None:
    cluster = Histories(n1=History(orders(1000), most=70))
    assert len(search(cluster, "order_id >= 0", limit=2000).messages) == 1000


def test_a_node_that_makes_no_progress_is_left_out() -> None:
    found = search(Histories(n1=History(orders(1000), most=0)), "x")
    assert "lacks the requested data" in found.silent[0].reason


def test_large_messages_are_read_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin.messages.searching._MOST_BYTES", 300)
    cluster = Histories(n1=History([b"x" * 100] * 200))
    assert [sequence for _, sequence in ids(search(cluster, limit=50))] == list(range(199, 149, -1))


def test_a_masked_field_is_not_found() -> None:
    cluster = Histories(n1=History([b'{"card":"4711","n":1}']))
    asked = Search(topic="t", wanted=parse_filter("4711"), identity=Identity())
    searcher = Searcher(cluster.reader(parse_masks(["$.card"])))

    async def run() -> SearchResult:
        return await searcher.search(cluster.picture, asked)

    assert trio.run(run).messages == ()


@pytest.mark.parametrize("text", ["x", "1@n1:4151", "1-2@", "-1-2@n", "1-99999999999999999999@n"])
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadCursor):
        parse_cursor(text)


def test_a_search_does_not_go_on_in_a_log_that_has_taken_the_place_of_another() -> None:
    cluster = Histories(n1=History(orders(3000)))
    found = search(cluster, limit=5)
    cluster.nodes["n1:4151"] = History(orders(3000), log_id="l2")
    again = search(cluster, limit=5, cursor=found.cursor)
    assert again.messages == ()
    assert "deleted and created again" in again.silent[0].reason


def test_a_log_that_is_exchanged_between_two_reads_is_not_searched_on() -> None:
    class Exchanged(Histories):
        async def get_json(self, address: str, target: str) -> Any:
            answer = await super().get_json(address, target)
            self.nodes[address].log_id = "l2"
            return answer

    found = search(Exchanged(n1=History(orders(3000))), "order_id")
    assert found.messages == ()
    assert "deleted and created again" in found.silent[0].reason


@pytest.mark.parametrize("log_id", ["1 2@n2", "a@b", "", "x" * 65])
def test_an_id_of_a_log_that_is_none_is_refused(log_id: str) -> None:
    found = search(Histories(n1=History(orders(5), log_id=log_id)))
    assert "is no id of a log" in found.silent[0].reason


def test_a_node_that_was_silent_for_one_step_goes_on_where_it_was() -> None:
    class Silent(Histories):
        is_silent = False

        async def get_json(self, address: str, target: str) -> Any:
            if self.is_silent and address.startswith("n2"):
                raise UpstreamError("no answer")
            return await super().get_json(address, target)

    cluster = Silent(n1=History(orders(10)), n2=History(orders(10)))
    found = [search(cluster, limit=4)]
    cluster.is_silent = True
    found.append(search(cluster, limit=4, cursor=found[-1].cursor))
    assert [log.node for log in found[-1].silent] == ["n2:4151"]
    cluster.is_silent = False
    found.append(search(cluster, limit=20, cursor=found[-1].cursor))
    assert sorted(it for step in found for it in ids(step)) == [(name, at) for name in ("n1", "n2") for at in range(10)]
