"""What is said before and after an action on a group, whom it is asked of, and who may ask for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from nsqadmin.access import Identity, Right, Role
from nsqadmin.cluster.message_groups import MessageGroup, NodeGroups
from nsqadmin.messages.group_actions import (
    GroupPlan,
    GroupVerb,
    GroupWanted,
    parse_group,
    plan_group,
    undo_bury_plan,
)
from nsqadmin.messages.lists import BadRequest
from nsqadmin.messages.selection_acting import act
from nsqadmin.messages.selection_plan import SelectionPlan
from nsqadmin.upstream.client import UpstreamError
from tests.support.picture import channel, channel_node, client

N1 = NodeGroups(
    node="n1:4151",
    ahead=7,
    largest=(MessageGroup(name="acme2", held=99), MessageGroup(name="acme", held=4, again=1, in_flight=2)),
)
N2 = NodeGroups(node="n2:4151")
SILENT = NodeGroups(node="n3:4151", untold="it does not answer")
WITHOUT = NodeGroups(node="n4:4151", has_rules=False)
BURIED = {"buried": 5, "reason": "with its group acme (request 7)", "in_flight": 2, "unread": 1}


def planned(verb: GroupVerb, *told: NodeGroups, **more: Any) -> GroupPlan:
    on = channel(*(channel_node(it.node, clients=(client(it.node),)) for it in (N1, N2, SILENT, WITHOUT)))
    return plan_group(on, told or (N1, N2, SILENT, WITHOUT), GroupWanted(verb=verb, group="acme", **more))


def words(plan: GroupPlan) -> str:
    return " ".join(it.text for it in plan.consequences)


def user(*rights: Right) -> Identity:
    return Identity(user="ana", roles=(Role(name="some", can=frozenset(rights), topics=("*",)),))


class Nodes:
    def __init__(self, **answers: Any) -> None:
        self.asked: list[tuple[str, str]] = []
        self._answers = answers

    async def post(self, node: str, target: str, _: bytes) -> bytes:
        self.asked.append((node, target))
        answer = self._answers[node.partition(":")[0]]
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()


def done(plan: SelectionPlan[Any, Any], nodes: Nodes) -> tuple[Any, ...]:
    upstream: Any = nodes
    return trio.run(act, plan, upstream, lambda _, __: None)


def test_each_node_with_rules_is_asked_and_the_others_are_named() -> None:
    plan = planned(GroupVerb.BURY)
    assert [(it.node, it.count) for it in plan.shares] == [("n1:4151", 5), ("n2:4151", 0)]
    assert [it.node for it in plan.left_out] == ["n3:4151", "n4:4151"]
    assert "n3:4151 did not report its groups: it does not answer. It is not asked." in words(plan)
    assert "n4:4151 has no rules about groups" in words(plan)
    assert "The nodes have not read 7 messages yet" in words(plan)
    assert "2 of its messages are in flight now" in words(plan)
    assert "No node with rules about groups answers." in words(planned(GroupVerb.BURY, SILENT))


def test_a_cancel_is_final_so_the_name_has_to_be_typed() -> None:
    plan = planned(GroupVerb.CANCEL)
    assert "This cannot be undone" in words(plan)
    assert (plan.must_type, plan.to_type) == ("acme", "the name of the group")
    assert plan.is_confirmed_by("acme")
    assert not plan.is_confirmed_by("")
    assert planned(GroupVerb.BURY).is_confirmed_by("")
    assert "cannot be undone" not in words(planned(GroupVerb.BURY))


def test_it_needs_the_right_to_see_messages_too() -> None:
    plan, undo = planned(GroupVerb.BURY), undo_bury_plan(channel(), ["why@n1:4151"])
    for it in (plan, undo):
        assert not it.refusal(user(Right.OPERATE, Right.PAYLOAD))
        assert "'payload'" in it.refusal(user(Right.OPERATE))
        assert "'operator'" in it.refusal(user(Right.PAYLOAD))


def test_a_burial_is_told_and_can_be_taken_back() -> None:
    plan = planned(GroupVerb.BURY)
    nodes = Nodes(n1=BURIED, n2=UpstreamError("HTTP 404", status=404, body=b'{"message":"NO_GROUPS"}'))
    results = done(plan, nodes)
    assert ("n1:4151", "/channel/bury?topic=t&channel=c&group=acme") in nodes.asked
    assert plan.receipt(results).startswith("5 messages buried; 2 left in flight at a consumer; 1 left")
    assert "no rules about groups for this channel any more" in results[1].error
    assert "acme" not in plan.noted(results)  # others read that, too
    assert plan.burials(results) == ("with its group acme (request 7)@n1:4151",)
    on = channel(channel_node("n1:4151"))
    undo = undo_bury_plan(on, plan.burials(results))
    nodes = Nodes(n1={"kicked": 5, "job": None, "kick": 3})
    back = done(undo, nodes)
    assert nodes.asked == [("n1:4151", "/channel/kick?topic=t&channel=c&reason=with+its+group+acme+%28request+7%29")]
    assert undo.receipt(back) == "5 messages returned to the group."
    assert undo.kicks(back) == ("3@n1:4151",)


def test_a_move_says_when() -> None:
    later = planned(GroupVerb.DUE, N1, delay=600.0)
    assert later.title == "Make the group acme in t/c due in 10m"
    nodes = Nodes(n1={"moved": 5, "in_flight": 0, "unread": 0})
    assert later.receipt(done(later, nodes)) == "5 messages made due in 10m."
    assert nodes.asked == [("n1:4151", "/channel/due?topic=t&channel=c&group=acme&defer=600000")]
    now = planned(GroupVerb.DUE, N1, delay=0.0)
    done(now, nodes)
    assert "defer" not in nodes.asked[1][1]
    assert "Its consumers will receive them" in words(now)
    assert planned(GroupVerb.DUE, N1).title.startswith("Move the group acme")


@pytest.mark.parametrize("text", ["", "x" * 129])
def test_a_group_has_a_valid_name(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_group(text)


@pytest.mark.parametrize("burials", [[], ["why@elsewhere:1"], ["@n1:4151"]])
def test_only_a_burial_at_a_node_of_the_channel_is_taken_back(burials: list[str]) -> None:
    with pytest.raises(BadRequest):
        undo_bury_plan(channel(), burials)
