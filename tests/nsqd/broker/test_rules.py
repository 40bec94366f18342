from __future__ import annotations

from nsqd.broker.rules import NO_CHANNEL_RULES, NO_TOPIC_RULES, ChannelRules, TopicRules
from tests.support.given_rules import GivenRules
from tests.support.node import Node


def test_without_a_policy_all_share_the_rules_that_demand_nothing() -> None:
    topic = Node().broker.topic("t")
    assert topic.policy.rules is NO_TOPIC_RULES
    assert topic.channel("c").policy.rules is NO_CHANNEL_RULES


def test_rules_are_taken_when_a_name_begins_and_again_when_they_have_changed() -> None:
    policy = GivenRules(ChannelRules(max_attempts=3), TopicRules(max_messages=5))
    broker = Node(policy=policy).broker
    topic = broker.topic("t")
    channel = topic.channel("c")
    assert (topic.policy.rules, channel.policy.rules) == (policy.of_topics, policy.of_channels)
    policy.of_channels = ChannelRules(max_attempts=7)
    policy.of_topics = NO_TOPIC_RULES
    assert channel.policy.rules.max_attempts == 3
    broker.rules_changed(["t", "a topic that is gone"])
    assert (topic.policy.rules, channel.policy.rules) == (NO_TOPIC_RULES, policy.of_channels)


def test_rules_hold_after_a_crash() -> None:
    node = Node(policy=GivenRules(ChannelRules(max_attempts=3), TopicRules(max_messages=5)))
    node.broker.topic("t").channel("c")
    node.turn()
    node.crash()
    topic = node.broker.topics["t"]
    assert (topic.policy.rules.max_messages, topic.channels["c"].policy.rules.max_attempts) == (5, 3)
