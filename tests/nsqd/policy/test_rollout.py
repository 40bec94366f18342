"""A changed policy file on its way to the topics."""

from __future__ import annotations

import pytest
import trio

from nsqcommon.turn import in_turn
from nsqd.broker.rules import ChannelRules, TopicRules
from nsqd.policy.rollout import Rollout
from tests.support.given_rules import GivenRules
from tests.support.node import Node, NodeTurn


class CountedRules(GivenRules):
    """Rules of a file with many entries. Counts in each turn the names that it is asked about."""

    entries = 2_000

    def __init__(self) -> None:
        super().__init__()
        self.topics_left = 0
        self.in_turns: list[int] = []

    def channel(self, topic: str, channel: str, /) -> ChannelRules:
        self._count()
        return super().channel(topic, channel)

    def topic(self, topic: str, /) -> TopicRules:
        self._count()
        return super().topic(topic)

    def _count(self) -> None:
        if self.in_turns:
            self.in_turns[-1] += 1


class CountingTurn(NodeTurn):
    def __init__(self, node: Node, rules: CountedRules) -> None:
        super().__init__(node)
        self._rules = rules

    def begin(self) -> float:
        self._rules.in_turns.append(0)
        return super().begin()


class LogsStore:
    def settings_changed(self, topics: list[str]) -> None: ...


def rollout_of(node: Node, rules: CountedRules) -> Rollout:
    return Rollout(rules, node.broker, CountingTurn(node, rules), LogsStore())


def apply(rollout: Rollout) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            rollout.start(nursery)

    trio.run(main)


@pytest.mark.parametrize(("topics", "channels"), [(1, 300), (150, 1)])
def test_a_changed_policy_reaches_a_few_names_in_each_turn(topics: int, channels: int) -> None:
    rules = CountedRules()
    node = Node(policy=rules)
    for topic in range(topics):
        for channel in range(channels):
            node.broker.topic(f"t{topic}").channel(f"c{channel}")
    rules.of_channels, rules.of_topics = ChannelRules(max_attempts=3), TopicRules(max_messages=5)
    apply(rollout_of(node, rules))
    assert sum(rules.in_turns) == topics * (1 + channels)
    assert max(rules.in_turns) <= 10, "2,000 entries are compared with each name"
    assert all(
        (topic.policy.rules, channel.policy.rules) == (rules.of_topics, rules.of_channels)
        for topic in node.broker.topics.values()
        for channel in topic.channels.values()
    )


def test_names_that_come_and_go_while_a_policy_is_applied_are_no_trouble() -> None:
    rules = CountedRules()
    node = Node(policy=rules)
    for number in range(100):
        node.broker.topic(f"t{number}").channel("c")
    for number in range(100):
        node.broker.topic("many").channel(f"c{number}")
    rules.of_channels = ChannelRules(max_attempts=3)
    rollout = rollout_of(node, rules)

    async def change_names() -> None:
        while not rules.in_turns:  # the first turn tells nobody
            await trio.lowlevel.checkpoint()
        with in_turn(NodeTurn(node)):
            node.broker.delete_topic("t0")
            node.broker.delete_topic("t99")
            node.broker.topic("many").delete_channel("c99")
            node.broker.topic("new").channel("c")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            rollout.start(nursery)
            nursery.start_soon(change_names)

    trio.run(main)
    topics = node.broker.topics
    assert len(topics) == 100
    assert len(topics["many"].channels) == 99
    assert all(it.policy.rules.max_attempts == 3 for topic in topics.values() for it in topic.channels.values())


def test_a_newer_policy_starts_over_and_what_is_left_is_told() -> None:
    rules = CountedRules()
    node = Node(policy=rules)
    for number in range(100):
        node.broker.topic(f"t{number}")
    rollout = rollout_of(node, rules)
    left: list[int] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            rules.of_topics = TopicRules(max_messages=5)
            rollout.start(nursery)
            while len(rules.in_turns) < 5:  # a turn tells nobody
                left.append(rules.topics_left)
                await trio.lowlevel.checkpoint()
            rules.of_topics = TopicRules(max_messages=7)
            rollout.start(nursery)
            left.append(rules.topics_left)

    trio.run(main)
    assert left[0] == left[-1] == 100
    assert 0 < left[-2] < 100
    assert rules.topics_left == 0
    assert all(topic.policy.rules.max_messages == 7 for topic in node.broker.topics.values())
    assert sum(rules.in_turns) < 200, "the older pass ended"
