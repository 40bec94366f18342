"""One action on several topics and channels: what is picked, the joint plan, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.actions.plan import Action, BadAction, Kind
from nsqadmin.actions.several import MOST, Pick, SeveralPlan, Verb, parse_picks, plan_several
from nsqadmin.cluster.model import Snapshot, TopicNode
from tests.support import picture

NODES = ("n1:4151", "n2:4151")
PRINTABLE = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
NAMES = st.text(PRINTABLE, min_size=1, max_size=12)


def a_topic(name: str, *channels: str, depth: int = 0, paused: str = "") -> Any:
    rows = tuple(TopicNode(node=node, depth=depth, paused=paused == name) for node in NODES)
    made = (
        picture.channel(
            *(picture.channel_node(node, depth=depth, paused=paused == each) for node in NODES),
            topic=name,
            name=each,
        )
        for each in channels
    )
    return picture.topic(*made, name=name, nodes=rows)


def a_cluster(*topics: Any) -> Snapshot:
    return picture.snapshot(*topics, nodes=tuple(map(picture.node, NODES)))


def planned(snapshot: Snapshot, verb: Verb, *picks: str, forbidden: str = "") -> SeveralPlan:
    def refusal(action: Action) -> str:
        return "you do not have the right" if action.topic == forbidden else ""

    return plan_several(snapshot, verb, parse_picks(picks), refusal)


def left_out(plan: SeveralPlan) -> dict[str, str]:
    return {part.action.name: part.why_not for part in plan.parts if part.plan is None}


@given(topic=NAMES, channel=st.just("") | NAMES, nodes=st.lists(NAMES, max_size=3))
def test_any_name_is_read_as_it_was_written(topic: str, channel: str, nodes: list[str]) -> None:
    pick = Pick(topic, channel, tuple(nodes))
    assert parse_picks([str(pick)]) == (pick,)


@pytest.mark.parametrize("word", ["", "/c", "@n1", "t@", "t/c@n1@"])
def test_a_pick_that_names_nothing_is_refused(word: str) -> None:
    with pytest.raises(BadAction):
        parse_picks([word])


def test_a_pick_counts_once_and_their_number_is_limited() -> None:
    assert len(parse_picks(["t", "t", "t/c"])) == 2
    with pytest.raises(BadAction, match="501 topics and channels are selected; at most 500 at once"):
        parse_picks(map(str, range(MOST + 1)))


def test_a_joint_plan_names_each_and_says_once_what_holds_for_all() -> None:
    plan = planned(
        a_cluster(a_topic("a", "x"), a_topic("b", "y#ephemeral")), Verb.PAUSE, "a", "b", "a/x", "b/y%23ephemeral"
    )
    assert plan.title == "Pause 2 topics and 2 channels"
    assert [part.action.name for part in plan.parts] == ["a", "b", "a/x", "b/y#ephemeral"]
    assert [it.text for it in plan.said_once] == [
        "Topics: new messages wait in the topic until it is unpaused; its channels get nothing new.",
        "Channels: nothing is delivered from this channel until it is unpaused; messages wait in it.",
    ]
    assert [len(plan.own(part)) for part in plan.parts] == [0, 0, 0, 1], "only one is ephemeral"
    assert {call.address for call in plan.calls} == set(NODES)
    assert plan.must_type == ""


def test_what_has_nothing_to_do_is_left_out_with_the_reason() -> None:
    cluster = a_cluster(a_topic("a", "x", "y", paused="x"), picture.topic(name="unused", nodes=()))
    plan = planned(cluster, Verb.PAUSE, "a/x", "a/y", "a/gone", "gone", "unused")
    assert left_out(plan) == {
        "a/x": "it is paused already",
        "a/gone": "it does not exist any more",
        "gone": "it does not exist any more",
        "unused": "no node has it",
    }
    assert left_out(planned(cluster, Verb.UNPAUSE, "a/x", "a/y")) == {"a/y": "it is not paused"}
    undo = planned(cluster, Verb.PAUSE, "a/x@n1%3A4151")
    assert [call.address for call in undo.calls] == ["n1:4151"], "an undo knows which nodes it has to change"


def test_rights_are_asked_for_each_topic() -> None:
    plan = planned(a_cluster(a_topic("a"), a_topic("b")), Verb.EMPTY, "a", "b", forbidden="b")
    assert left_out(plan) == {"b": "you do not have the right"}
    assert [it.action.kind for it in plan.plans] == [Kind.EMPTY_TOPIC]
    assert plan.title.startswith("Empty 1 topic")


def test_a_channel_is_not_deleted_a_second_time_with_its_topic() -> None:
    cluster = a_cluster(a_topic("a", "x", depth=3))
    plan = planned(cluster, Verb.DELETE, "a/x", "a")
    assert left_out(plan) == {"a/x": "it is deleted with its topic"}
    assert plan.lost == 12
    plan = planned(cluster, Verb.DELETE, "a/x", "a", forbidden="a")
    assert set(left_out(plan).values()) == {"you do not have the right"}


def test_what_destroys_has_to_be_typed() -> None:
    few, many = a_cluster(a_topic("a", depth=1)), a_cluster(a_topic("a", "x", depth=400))
    assert planned(few, Verb.DELETE, "a").must_type == "delete"
    assert planned(few, Verb.EMPTY, "a").must_type == ""
    assert planned(many, Verb.EMPTY, "a", "a/x").must_type == "empty", "1,600 messages together"
    assert planned(many, Verb.PAUSE, "a").must_type == ""
