"""What one client may cost before all others get their turn."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import pub
from nsqd.client.work_budget import (
    COST_OF_DEFERRAL,
    COST_OF_FAILURE,
    COST_OF_LOG,
    COST_OF_TOPIC,
    COST_OF_TOUCH,
    STRETCH,
    WorkBudget,
)
from tests.support.node import Node


def test_costs_add_up() -> None:
    stretch = WorkBudget()
    assert stretch.spent == 0
    stretch.spend(COST_OF_TOUCH)
    stretch.spend(COST_OF_FAILURE)
    assert stretch.spent == COST_OF_TOUCH + COST_OF_FAILURE


@pytest.mark.parametrize("cost", [COST_OF_TOUCH, COST_OF_DEFERRAL, COST_OF_LOG, COST_OF_FAILURE, COST_OF_TOPIC])
def test_a_stretch_has_room_for_several_expensive_commands_but_for_fewer_than_plain_ones(cost: int) -> None:
    assert 1 < STRETCH // cost < STRETCH


def test_a_client_that_gave_way_goes_on_with_a_full_stretch() -> None:
    at_a_stretch = STRETCH // COST_OF_TOPIC
    node = Node()
    client = node.client()
    client.say(b"".join(pub(f"topic_{number}", b"x") for number in range(2 * at_a_stretch)))
    assert len(node.broker.topics) == at_a_stretch
    node.pass_time(0.001)
    assert len(node.broker.topics) == 2 * at_a_stretch


def test_logs_that_a_client_has_written_in_one_turn_are_few() -> None:
    at_a_stretch = STRETCH // COST_OF_LOG
    node = Node()
    topics = [node.broker.topic(f"topic_{number}") for number in range(2 * at_a_stretch)]
    client = node.client()
    client.say(b"".join(pub(topic.name, b"x") for topic in topics))
    assert [topic.message_count for topic in topics] == [1] * at_a_stretch + [0] * at_a_stretch
    node.pass_time(0.001)
    assert [topic.message_count for topic in topics] == [1] * 2 * at_a_stretch


def test_a_client_that_goes_back_and_forth_between_two_topics_has_two_logs_written() -> None:
    node = Node()
    one, two = node.broker.topic("one"), node.broker.topic("two")
    node.client().say((pub("one", b"x") + pub("two", b"x")) * (STRETCH // 2))
    assert one.message_count == two.message_count == STRETCH // 2
