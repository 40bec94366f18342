"""The rules about groups that are measured, and the messages that the load generator publishes with groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import groups
from bench.groups import PLAIN, RULES, STUCK, GroupsSettings
from bench.work import Work
from bench.workloads import CHANNEL, SIZE, fill
from nsqd.policy.parse import doubts, parse_policies


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_a_policy_without_doubts(rule: str) -> None:
    assert not [*doubts(parse_policies(groups.policy_of(rule)))]


@pytest.mark.slow
def test_groups_come_in_turn_or_half_of_the_messages_belong_to_the_first(tmp_path: Path) -> None:
    names = {"turn": [0, 1, 2, 0, 1, 2], "half": [1, 0, 2, 0, 1, 0]}
    with Work.open(tmp_path) as work, groups._nsqd(GroupsSettings(), work, PLAIN) as broker:
        for draw, numbers in names.items():
            broker.make_channel(draw, CHANNEL)
            fill(work, broker, draw, len(numbers), SIZE, len(numbers), "groups=3", f"draw={draw}")
            _, said = broker.send("POST", f"/sub?topic={draw}&channel={CHANNEL}&max={len(numbers)}", b"")
            got = [json.loads(line)["headers"]["nsq-group"] for line in said.splitlines()]
            assert got == [f"customer-{number:06}" for number in numbers]


@pytest.mark.slow
def test_others_go_on_beside_a_group_that_is_stuck(tmp_path: Path) -> None:
    settings = GroupsSettings(held=2_000, groups=100)
    with Work.open(tmp_path) as work:
        measured = groups._beside(settings, work, STUCK, 0)
    assert measured["rate"].value > 0
