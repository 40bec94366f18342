"""Nodes are asked for the largest groups of channels that hold many messages, now and then, and findings name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

from nsqadmin.cluster.message_groups import MessageGroup, NodeGroups
from nsqadmin.cluster.model import Snapshot
from nsqadmin.upstream.channel_survey import ChannelSurvey
from nsqadmin.upstream.group_survey import group_survey
from nsqadmin.upstream.groups import GroupQuestions
from tests.support.picture import channel, channel_node, node, snapshot, topic

GroupSurvey = ChannelSurvey[NodeGroups]
ACME = MessageGroup(name="acme", held=1_500)


class Questions:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, int]] = []
        self.untold = ""

    async def ask(self, nodes: Sequence[Any], topic: str, channel: str, *, rows: int) -> tuple[NodeGroups, ...]:
        (one,) = nodes
        self.asked.append((one.address, topic, channel, rows))
        await trio.lowlevel.checkpoint()
        if self.untold:
            return (NodeGroups(node=one.address, untold=self.untold),)
        return (NodeGroups(node=one.address, held=1_600, max_held=5_000, largest=(ACME, MessageGroup(name=""))),)


def picture(held: int = 1_600) -> Snapshot:
    rows = channel_node("n1:4151", held_count=held), channel_node("n2:4151", held_count=3)
    return snapshot(topic(channel(*rows)), topic(channel(topic="u"), name="u"), nodes=(node(), node("n2:4151")))


def surveyed(look: Callable[[GroupSurvey, Questions], Any], *, shows_names: bool = True) -> None:
    questions = Questions()
    survey = group_survey(cast("GroupQuestions", questions), shows_names=shows_names)
    trio.run(look, survey, questions, clock=trio.testing.MockClock(autojump_threshold=0))


async def sweep(survey: GroupSurvey, shown: Snapshot) -> Any:
    """Return the rows of the channel in the next sweep's picture."""
    async with trio.open_nursery() as nursery:
        survey.start(nursery, shown)
    topics = survey.shown(shown.topics)
    assert topics[1] is shown.topics[1]
    return topics[0].channels[0].nodes


def test_nodes_that_hold_many_are_asked_for_their_largest_groups() -> None:
    async def look(survey: GroupSurvey, questions: Questions) -> None:
        first, second = await sweep(survey, picture())
        assert (first.max_held, [it.name for it in first.largest_groups]) == (5_000, ["acme", ""])
        assert second.largest_groups == ()
        assert questions.asked == [("n1:4151", "t", "c", 3)]
        questions.untold = "it does not answer"
        await trio.sleep(20)
        first, _ = await sweep(survey, picture())
        assert len(questions.asked) == 2
        assert first.largest_groups  # as last known
        await trio.sleep(20)
        await sweep(survey, picture(held=999))
        assert len(questions.asked) == 2

    surveyed(look)


@pytest.mark.parametrize("shows_names", [True, False])
def test_names_are_hidden_if_some_users_may_not_see_messages(*, shows_names: bool) -> None:
    async def look(survey: GroupSurvey, questions: Questions) -> None:
        first, _ = await sweep(survey, picture())
        assert [it.name for it in first.largest_groups] == ["acme" if shows_names else "***", ""]
        assert first.largest_groups[0].held == 1_500

    surveyed(look, shows_names=shows_names)
