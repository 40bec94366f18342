"""Nodes are asked about channels where most of something is: now and then, once at a time, and while it is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio
import trio.testing

from nsqadmin.cluster.model import ChannelNode, Health, Node, Snapshot
from nsqadmin.upstream.channel_survey import ChannelSurvey
from tests.support.picture import channel, channel_node, node, snapshot, topic


class Nodes:
    """Answers with the number of the question."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.seconds = 0.0  # until it answers
        self.is_silent = False

    async def ask(self, node: Node, topic: str, channel: str) -> int | None:
        self.asked.append((node.address, topic, channel))
        await trio.sleep(self.seconds)
        return None if self.is_silent else len(self.asked)


Survey = ChannelSurvey[int]


def picture(held: int = 7, health: Health = Health.OK) -> Snapshot:
    rows = channel_node("n1:4151", held_count=held), channel_node("n2:4151")
    channels = channel(*rows), channel(name="empty")
    return snapshot(topic(*channels), topic(channel(topic="u"), name="u"), nodes=(node(health=health), node("n2:4151")))


def surveyed(look: Callable[[Survey, Nodes], Awaitable[None]]) -> None:
    nodes = Nodes()
    survey = ChannelSurvey(lambda it: it.held_count, nodes.ask, lambda row, told: replace(row, max_held=told))
    trio.run(look, survey, nodes, clock=trio.testing.MockClock(autojump_threshold=0))


async def sweep(survey: Survey, shown: Snapshot) -> tuple[ChannelNode, ...]:
    """Return the rows of the first channel in the next sweep's picture."""
    async with trio.open_nursery() as nursery:
        survey.start(nursery, shown)
    topics = survey.shown(shown.topics)
    assert topics[1] is shown.topics[1]
    return topics[0].channels[0].nodes


def test_nodes_are_asked_every_fifteen_seconds_while_they_have_any() -> None:
    async def look(survey: Survey, nodes: Nodes) -> None:
        first, second = await sweep(survey, picture())
        assert (first.max_held, second.max_held) == (1, 0)
        for _ in range(3):
            await trio.sleep(5)
            first, _ = await sweep(survey, picture())
        assert nodes.asked == [("n1:4151", "t", "c")] * 2
        assert first.max_held == 2
        await trio.sleep(20)
        first, _ = await sweep(survey, picture(held=0))
        assert (len(nodes.asked), first.max_held) == (2, 0)
        first, _ = await sweep(survey, picture())
        assert first.max_held == 0  # forgotten

    surveyed(look)


def test_a_node_that_does_not_answer_leaves_the_earlier_answer() -> None:
    async def look(survey: Survey, nodes: Nodes) -> None:
        await sweep(survey, picture())
        nodes.is_silent = True
        await trio.sleep(20)
        first, _ = await sweep(survey, picture())
        assert (len(nodes.asked), first.max_held) == (2, 1)
        await trio.sleep(20)
        first, _ = await sweep(survey, picture(health=Health.DOWN))
        assert (len(nodes.asked), first.max_held) == (2, 1)

    surveyed(look)


def test_a_slow_node_is_not_asked_again_before_it_answers() -> None:
    """Otherwise questions would pile up: all channels together have only so many at a time."""

    async def look(survey: Survey, nodes: Nodes) -> None:
        nodes.seconds = 50.0
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                survey.start(nursery, picture())
                await trio.sleep(20)
            assert len(nodes.asked) == 2

    surveyed(look)
