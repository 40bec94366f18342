"""What nodes have buried is added up, and a node that does not answer is never one with nothing."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.messages.buried import BURIED, BuriedSummary, NodeReason, NodeSummary


def on_node(node: str, *reasons: tuple[str, str, int], **fields: Any) -> NodeSummary:
    listed = tuple(NodeReason(reason=reason, client=client, count=count) for reason, client, count in reasons)
    return NodeSummary(node=node, count=sum(it.count for it in listed), reasons=listed, **fields)


def test_reasons_of_all_nodes_are_added_up_the_most_frequent_first() -> None:
    found = BuriedSummary(
        nodes=(on_node("n1", ("slow", "a", 1), ("bad", "a", 2)), on_node("n2", ("slow", "b", 3), ("slow", "a", 1)))
    )
    assert [(it.text, it.count, it.nodes, it.clients) for it in found.reasons] == [
        ("slow", 5, ("n1", "n2"), ("a", "b")),
        ("bad", 2, ("n1",), ("a",)),
    ]
    assert (found.count, found.missing) == (7, ())


def test_a_node_that_does_not_answer_is_missing_and_is_not_counted_as_zero() -> None:
    silent = NodeSummary(node="n2", count=40, error="it does not answer")
    found = BuriedSummary(nodes=(on_node("n1", ("bad", "a", 2)), silent))
    assert (found.count, found.missing) == (2, (silent,))
    assert [it.nodes for it in found.reasons] == [("n1",)]


GOOD: dict[str, Any] = {"count": 3, "reasons": [{"reason": "bad", "client": "a", "count": 2}], "others": 1, "job": None}
JOB = {"verb": "kick", "done": 40, "limit": 100, "reason": "", "before": 0, "rate": 10, "who": "ana", "started_at": 1}


def test_a_summary_is_read_with_the_job_under_way_and_the_last_one() -> None:
    under_way, ended = {**JOB, "ended_at": None}, {**JOB, "ended_at": 2_000_000_000}
    found = BURIED.count_in("n1", [{**GOOD, "job": under_way}, {"jobs": [under_way, ended]}])
    assert (found.count, found.others, found.having("a"), found.having("x")) == (3, 1, 3, 1)
    assert found.job is not None
    assert (found.job.left, found.job.seconds_left) == (60, 6.0)
    assert found.ended is not None
    assert found.ended.ended_at == 2.0


def test_a_node_tells_how_much_room_its_channel_has_or_that_nothing_bounds_it() -> None:
    assert BURIED.count_in("n1", [{**GOOD, "room": 0}, {"jobs": []}]).room == 0
    assert BURIED.count_in("n1", [{**GOOD, "room": None}, {"jobs": []}]).room is None
    assert BURIED.count_in("n1", [GOOD, {"jobs": []}]).room is None, "an older nsqd"


@pytest.mark.parametrize(
    "odd",
    [
        {**GOOD, "count": -1},
        {**GOOD, "room": -1},
        {**GOOD, "count": True},
        {**GOOD, "reasons": [{"reason": 1, "client": "a", "count": 2}]},
        {**GOOD, "reasons": [GOOD["reasons"][0]] * 1001},
        {**GOOD, "job": {**JOB, "rate": float("nan"), "ended_at": None}},
        [],
    ],
)
def test_what_no_nsqd_says_is_refused(odd: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        BURIED.count_in("n1", [odd, {"jobs": []}])


def test_the_place_before_a_message() -> None:
    assert [BURIED.place_before(it) for it in ("0", "1", "47")] == ["", "0", "46"]
    for odd in ("", "-1", "x", "1,2", "9" * 20):
        with pytest.raises(ValueError, match="no sequence"):
            BURIED.place_before(odd)
