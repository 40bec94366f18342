"""What diagnosis finds about groups of messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nsqadmin.cluster.message_groups import MessageGroup
from nsqadmin.cluster.model import Severity
from tests.nsqadmin.diagnosis.test_diagnosis import about, found, only, said
from tests.support.picture import NOW, channel, channel_node, client, snapshot, topic

BUSY = (client(ready_count=5, in_flight_count=1),)
HELD = channel_node(depth=60, held_count=50, group_count=3, in_flight_count=1, clients=BUSY)
FULL = replace(HELD, held_full_since=NOW - 90)


def test_d36_no_more_messages_may_be_held() -> None:
    finding = only(about(channel(FULL)))
    assert (finding.rule, finding.severity) == ("D36", Severity.PROBLEM)
    assert finding.verdict == "max_held is reached: new messages of all groups wait behind the held ones"
    evidence = {"held": "50", "groups": "3", "waiting": "60", "for": "1m 30s", "reached on": "n1:4151"}
    assert said(finding) == evidence
    assert "raise max_held" in finding.advice


def test_d36_names_the_nodes_if_others_have_room() -> None:
    other = channel_node("n2:4151", depth=3, held_count=2, group_count=1, in_flight_count=1, clients=BUSY)
    finding = only(about(channel(FULL, other)))
    assert finding.verdict.startswith("max_held is reached on 1 of 2 nodes: ")
    assert said(finding)["held"] == "50"


STUCK = MessageGroup(name="acme", held=2_000, again=1, in_flight=1, oldest_at=NOW - 3600)
FEW = MessageGroup(name="zeta", held=40, in_flight=1, oldest_at=NOW - 3600)
MUCH = replace(HELD, depth=3_000, held_count=2_040, max_held=20_000, largest_groups=(STUCK, FEW))


def test_d36_names_the_largest_groups_and_warns_before_it_is_too_late() -> None:
    finding = only(about(channel(replace(MUCH, held_full_since=NOW - 90))))
    assert said(finding)["largest groups"] == "acme: 2,000, zeta: 40"
    (nearly, _) = about(channel(replace(MUCH, max_held=2_100)))
    assert (nearly.rule, nearly.severity) == ("D36", Severity.WARNING)
    assert nearly.verdict.startswith("max_held is nearly reached")
    assert said(nearly)["max_held"] == "2,100"


def test_d38_one_stuck_group_holds_most() -> None:
    finding = only(about(channel(MUCH)))
    assert (finding.rule, finding.severity) == ("D38", Severity.WARNING)
    assert finding.verdict == "The group acme holds most of the held messages: 2,000 of 2,040"
    evidence = {
        "held": "2,000",
        "in flight": "1",
        "to be delivered again": "1",
        "oldest held": "1h",
        "on": "n1:4151",
    }
    assert said(finding) == evidence
    assert "With fair shares alone they wait for their turn" in finding.advice
    nameless = replace(MUCH, largest_groups=(replace(STUCK, name=""),))
    assert only(about(channel(nameless))).verdict.startswith("The messages without a group hold most")


@pytest.mark.parametrize(
    "change",
    [{"held": 999}, {"oldest_at": NOW - 500}, {"oldest_at": None}],
)
def test_d38_needs_many_messages_that_have_waited_for_long(change: dict[str, Any]) -> None:
    assert about(channel(replace(MUCH, largest_groups=(replace(STUCK, **change),)))) == []


def test_d38_needs_most_of_what_is_held() -> None:
    assert about(channel(replace(MUCH, held_count=4_100))) == []


def test_held_messages_alone_are_no_finding_and_of_a_silent_node_nothing_is_known() -> None:
    assert about(channel(HELD)) == []
    rules = {it.rule for it in about(channel(FULL, silent=("n1:4151",)))}
    assert "D36" not in rules


def test_d37_headers_that_are_no_groups() -> None:
    it = channel(channel_node(depth=0, clients=BUSY), policy_recent=(("nsq-group ignored", 1204), ("buried", 1)))
    (finding,) = [it for it in found(snapshot(topic(it))) if it.rule == "D37"]
    assert finding.severity is Severity.WARNING
    assert finding.verdict == "1,204 messages of the last 5 min had a wrong nsq-group"
    assert said(finding) == {"wrong headers": "1,204"}
