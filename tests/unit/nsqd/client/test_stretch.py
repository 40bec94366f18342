"""What one client may cost before all others get their turn."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import pub
from nsqd.client.stretch import COST_OF_DEFERRAL, COST_OF_FAILURE, COST_OF_TOPIC, COST_OF_TOUCH, STRETCH, Stretch
from tests.support.node import Node


def test_costs_add_up() -> None:
    stretch = Stretch()
    assert stretch.spent == 0
    stretch.spend(COST_OF_TOUCH)
    stretch.spend(COST_OF_FAILURE)
    assert stretch.spent == COST_OF_TOUCH + COST_OF_FAILURE


@pytest.mark.parametrize("cost", [COST_OF_TOUCH, COST_OF_DEFERRAL, COST_OF_FAILURE, COST_OF_TOPIC])
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
