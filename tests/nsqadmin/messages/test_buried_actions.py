"""What a kick or discard would do: each node's share, who would receive the messages, and what cannot be undone."""

from __future__ import annotations

from typing import Any

import pytest

from nsqadmin.access import Right
from nsqadmin.cluster.model import Channel, Paused
from nsqadmin.messages.buried import BuriedSummary, NodeReason, NodeSummary, Operation
from nsqadmin.messages.buried_actions import (
    MOST_NAMED,
    VERBS,
    BuriedPlan,
    Verb,
    Wanted,
    parse_kicks,
    parse_picks,
    parse_rate,
    plan_buried,
)
from nsqadmin.messages.lists import BadRequest
from tests.support.picture import channel, channel_node, client

ID = "0f3c9a8e5d2b1000"
JOB = Operation(verb="kick", done=1, limit=9, rate=1.0, reason="", who="ana", started_at=0.0)


def on_node(node: str, count: int, **fields: Any) -> NodeSummary:
    reasons = (NodeReason(reason="bad", client="a", count=count),) if count else ()
    return NodeSummary(node=node, count=count, reasons=reasons, **fields)


def consumed(**fields: Any) -> Channel:
    at_both = (channel_node(it, clients=(client(it),)) for it in ("n1", "n2"))
    return channel(*at_both, **fields)


def planned(*nodes: NodeSummary, on: Channel | None = None, **wanted: Any) -> BuriedPlan:
    asked = Wanted(**{"verb": Verb.KICK, **wanted})
    return plan_buried(on or consumed(), BuriedSummary(nodes=nodes), asked, text=asked.reason)


def words(plan: BuriedPlan) -> str:
    return " ".join(it.text for it in plan.consequences)


def test_a_rate_holds_for_all_nodes_together_and_all_end_at_the_same_time() -> None:
    plan = planned(on_node("n1", 300), on_node("n2", 100), rate=1000.0)
    assert [(it.node, it.count, it.rate) for it in plan.shares] == [("n1", 300, 750.0), ("n2", 100, 250.0)]
    assert plan.count == 400


def test_a_limit_holds_for_all_nodes_together() -> None:
    plan = planned(on_node("n1", 3), on_node("n2", 100), limit=5)
    assert [(it.node, it.count) for it in plan.shares] == [("n1", 3), ("n2", 2)]
    assert [it.node for it in planned(on_node("n1", 3), on_node("n2", 100), limit=1).shares] == ["n1"]


def test_a_node_that_has_not_told_is_not_asked_and_is_named_with_what_it_had() -> None:
    plan = planned(on_node("n1", 3), on_node("n2", 40, error="it does not answer"))
    assert [it.node for it in plan.shares] == ["n1"]
    assert "n2 did not report its buried messages: it does not answer" in words(plan)
    assert "It had 40 buried messages when it was last seen" in words(plan)


def test_a_node_that_is_at_work_already_is_left_out() -> None:
    plan = planned(on_node("n1", 3), on_node("n2", 40, job=JOB))
    assert [it.node for it in plan.shares] == ["n1"]
    assert "n2 is already running a kick" in words(plan)


def test_by_reason_it_is_at_most_so_many_if_not_all_reasons_are_listed() -> None:
    exact = planned(on_node("n1", 3), reason="ba")
    assert (exact.count, "an upper limit" in words(exact)) == (3, False)
    most = planned(on_node("n1", 3, others=2), reason="ba")
    assert (most.count, "an upper limit" in words(most)) == (5, True)
    assert planned(on_node("n1", 3), reason="other").shares == ()


def test_who_receives_them_and_where_nobody_does() -> None:
    assert "Its consumers will receive them: host-1" in words(planned(on_node("n1", 3)))
    one = channel(channel_node("n1", clients=(client("n1"),)), channel_node("n2"))
    assert "No consumer is connected to n2" in words(planned(on_node("n1", 3), on_node("n2", 1), on=one))
    nobody = planned(on_node("n2", 1), on=one)
    assert "No consumer is connected there: they wait in the channel" in words(nobody)
    paused = consumed(paused=Paused.YES)
    assert "The channel is paused: there they wait" in words(planned(on_node("n1", 3), on=paused))


def test_what_can_be_stopped_and_what_can_be_taken_back() -> None:
    assert "a button Stop, which leaves the others buried" in words(planned(on_node("n1", 3), rate=1.0))
    assert "a button Stop" in words(planned(on_node("n1", 2001)))
    few = planned(on_node("n1", 3), ids=(("n1", ID),))
    assert "Undo buries again those that no consumer has received" in words(few)
    assert "a button Stop" not in words(few)


def test_a_discard_of_a_selection_wants_the_number_typed_and_a_kick_does_not() -> None:
    discard = planned(on_node("n1", 1234), verb=Verb.DISCARD)
    assert discard.must_type == "1234"
    assert "cannot be undone" in words(discard)
    assert planned(on_node("n1", 1234)).must_type == ""
    assert (VERBS[Verb.KICK].right, VERBS[Verb.DISCARD].right) == (Right.OPERATE, Right.ADMIN)


def test_named_messages_go_to_their_nodes_and_only_to_nodes_of_the_channel() -> None:
    other = "00000000000000ff"
    plan = planned(on_node("n1", 3), on_node("n2", 1), ids=(("n1", ID), ("n1", other)))
    assert [(it.node, it.ids) for it in plan.shares] == [("n1", (ID, other))]
    with pytest.raises(BadRequest, match="evil:80"):
        planned(on_node("n1", 3), ids=(("evil:80", ID),))


def test_names_of_messages() -> None:
    assert parse_picks([f"{ID}@n1:4151", f"{ID}@n1:4151"]) == (("n1:4151", ID),)
    for bad in (["x@n1:4151"], [f"{ID}@n 1"], [f"{at:016x}@n1" for at in range(MOST_NAMED + 1)]):
        with pytest.raises(BadRequest):
            parse_picks(bad)


def test_names_of_kicks() -> None:
    assert parse_kicks(["17@n1:4151", "17@n1:4151", "18@n2:4151"]) == (("n1:4151", 17), ("n2:4151", 18))
    for bad in ([], [""], ["x@n1"], ["1@"], ["-1@n1"], ["1" * 17 + "@n1"]):
        with pytest.raises(BadRequest):
            parse_kicks(bad)


def test_rates() -> None:
    assert [parse_rate(text) for text in ("", " ", "1000", "0.5")] == [0.0, 0.0, 1000.0, 0.5]
    for bad in ("-1", "nan", "inf", "0", "fast"):
        with pytest.raises(BadRequest):
            parse_rate(bad)


# A channel that is full


def test_a_kick_without_room_needs_force_and_says_where() -> None:
    plan = planned(on_node("n1", 300, room=40), on_node("n2", 100, room=100))
    assert plan.needs_force
    assert [(it.node, it.has_room) for it in plan.shares] == [("n1", False), ("n2", True)]
    assert "it has room for 40 of 300 on n1. A node with too little room refuses all of them" in words(plan)
    assert "on n2" not in words(plan)


def test_a_kick_by_force_says_what_becomes_of_new_messages() -> None:
    plan = planned(on_node("n1", 300, room=40), force=True)
    assert "With force they are requeued anyway" in words(plan)
    assert "new messages are dropped on arrival" in words(plan)


@pytest.mark.parametrize("wanted", [{"limit": 40}, {"verb": Verb.DISCARD}])
def test_a_kick_with_room_and_a_discard_need_no_force(wanted: dict[str, Any]) -> None:
    plan = planned(on_node("n1", 300, room=40), **wanted)
    assert not plan.needs_force
    assert "has room" not in words(plan)


def test_named_messages_need_room_too() -> None:
    ids = tuple(("n1", f"{number:016x}") for number in range(3))
    assert planned(on_node("n1", 300, room=2), ids=ids).needs_force
    assert not planned(on_node("n1", 300, room=3), ids=ids).needs_force
    assert not planned(on_node("n1", 300), ids=ids).needs_force
