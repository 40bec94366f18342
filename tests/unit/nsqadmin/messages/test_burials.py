"""What nodes have buried is added up, and a node that does not answer is never one with nothing."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.messages.burials import (
    Burial,
    NodeReason,
    NodeSummary,
    Summary,
    merged,
    parse_places,
    summary_in,
    written,
)


def on_node(node: str, *reasons: tuple[str, str, int], **fields: Any) -> NodeSummary:
    listed = tuple(NodeReason(reason=reason, client=client, count=count) for reason, client, count in reasons)
    return NodeSummary(node=node, count=sum(it.count for it in listed), reasons=listed, **fields)


def burial(node: str, sequence: int, at: float) -> Burial:
    return Burial(node=node, id=f"{sequence:016x}", sequence=sequence, attempts=5, buried_at=at, reason="r", client="c")


def test_reasons_of_all_nodes_are_added_up_the_most_frequent_first() -> None:
    found = Summary(
        nodes=(on_node("n1", ("slow", "a", 1), ("bad", "a", 2)), on_node("n2", ("slow", "b", 3), ("slow", "a", 1)))
    )
    assert [(it.text, it.count, it.nodes, it.clients) for it in found.reasons] == [
        ("slow", 5, ("n1", "n2"), ("a", "b")),
        ("bad", 2, ("n1",), ("a",)),
    ]
    assert (found.count, found.missing) == (7, ())


def test_a_node_that_does_not_answer_is_missing_and_is_not_counted_as_zero() -> None:
    silent = NodeSummary(node="n2", count=40, error="it does not answer")
    found = Summary(nodes=(on_node("n1", ("bad", "a", 2)), silent))
    assert (found.count, found.missing) == (2, (silent,))
    assert [it.nodes for it in found.reasons] == [("n1",)]


def test_messages_of_all_nodes_come_in_pages_and_none_is_left_out_or_comes_twice() -> None:
    nodes = {
        "n1": [burial("n1", sequence, 10.0 * sequence) for sequence in range(1, 8)],
        "n2": [burial("n2", sequence, 10.0 * sequence + 5) for sequence in range(1, 4)],
    }
    seen: list[tuple[str, int]] = []
    after = ""
    for _ in range(10):
        places = parse_places(after)
        lists = {node: [it for it in all_ if it.sequence > places.get(node, -1)][:3] for node, all_ in nodes.items()}
        shown, after = merged(lists, places, 3)
        seen += [(it.node, it.sequence) for it in shown]
        if not after:
            break
    assert len(seen) == len(set(seen)) == 10
    assert seen[:4] == [("n1", 1), ("n2", 1), ("n1", 2), ("n2", 2)]


def test_a_list_that_was_cut_off_goes_on() -> None:
    lists = {"n1": [burial("n1", 1, 1.0)], "n2": []}
    assert merged(lists, {}, 20)[1] == ""
    assert merged(lists, {}, 20, cut={"n1", "n2"})[1] == "1@n1"
    assert merged({"n1": []}, {}, 20, cut={"n1"})[1] == ""


def test_places_are_read_as_they_are_written() -> None:
    places = {"n1:4151": 17, "[::1]:4151": 0}
    assert parse_places(written(places)) == places
    with pytest.raises(ValueError, match="no place"):
        parse_places("17@n1:4151 evil")


GOOD: dict[str, Any] = {"count": 3, "reasons": [{"reason": "bad", "client": "a", "count": 2}], "others": 1, "job": None}
JOB = {"verb": "kick", "done": 40, "limit": 100, "reason": "", "before": 0, "rate": 10, "who": "ana", "started_at": 1}


def test_a_summary_is_read_with_the_job_under_way_and_the_last_one() -> None:
    under_way, ended = {**JOB, "ended_at": None}, {**JOB, "ended_at": 2_000_000_000}
    found = summary_in("n1", {**GOOD, "job": under_way}, {"jobs": [under_way, ended]})
    assert (found.count, found.others, found.having("a"), found.having("x")) == (3, 1, 3, 1)
    assert found.job is not None
    assert (found.job.left, found.job.seconds_left) == (60, 6.0)
    assert found.ended is not None
    assert found.ended.ended_at == 2.0


@pytest.mark.parametrize(
    "odd",
    [
        {**GOOD, "count": -1},
        {**GOOD, "count": True},
        {**GOOD, "reasons": [{"reason": 1, "client": "a", "count": 2}]},
        {**GOOD, "reasons": [GOOD["reasons"][0]] * 1001},
        {**GOOD, "job": {**JOB, "rate": float("nan"), "ended_at": None}},
        [],
    ],
)
def test_what_no_nsqd_says_is_refused(odd: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        summary_in("n1", odd, {"jobs": []})
