"""Rules for tests, without a policy file: the same for all channels, and the same for all topics."""

from __future__ import annotations

from dataclasses import dataclass

from nsqd.broker.rules import NO_CHANNEL_RULES, NO_TOPIC_RULES, ChannelRules, TopicRules


@dataclass
class GivenRules:
    """After a change, call `Broker.rules_changed`, as nsqd does when the policy file has changed."""

    of_channels: ChannelRules = NO_CHANNEL_RULES
    of_topics: TopicRules = NO_TOPIC_RULES

    def channel(self, topic: str, channel: str, /) -> ChannelRules:
        return self.of_channels

    def topic(self, topic: str, /) -> TopicRules:
        return self.of_topics
