"""A node whose topics and channels have bounds, for the tests of what bounds do."""

from __future__ import annotations

from itertools import count
from typing import Any

from nsqd.broker.channel import Channel
from nsqd.broker.rules import ChannelRules, Overflow, TopicRules
from tests.support.fake_store import FakeLog
from tests.support.given_rules import GivenRules
from tests.support.node import Node

DROP = Overflow.DROP_OLDEST
BURY = ChannelRules(max_messages=3, overflow=Overflow.BURY)
SIZE = 4 + 2  # of each message that is published here


class Bounded:
    """A node with rules, and messages that are numbered from 10 on."""

    def __init__(self, of_channels: ChannelRules | None = None, of_topics: TopicRules | None = None) -> None:
        self.policy = GivenRules(of_channels or ChannelRules(), of_topics or TopicRules())
        self.node = Node(policy=self.policy, mem_queue_size=1000, idempotence_window=10**12)
        self.numbers = count(10)
        self.topic = self.node.broker.topic("t")

    @property
    def log(self) -> FakeLog:
        return self.node.store.logs["t"]

    @property
    def real(self) -> Channel:
        """The channel c, as it is since the last crash."""
        return self.node.broker.topics["t"].channels["c"]

    def publish(self, count: int = 1, **options: Any) -> None:
        """Publish one batch in a turn of its own."""
        payload = b"".join(b"\0\0\0\2%d" % next(self.numbers) for _ in range(count))
        try:
            self.node.broker.topics["t"].publish(payload, range(0, SIZE * count + 1, SIZE), **options)
        finally:
            self.node.turn()

    def waiting(self, channel: str = "c") -> list[int]:
        """Return the numbers of the messages that the channel delivers from now on."""
        consumer = self.node.consumer(channel=channel, ready=1000)
        self.node.load()
        return [int(message.body) for message in consumer.messages()]

    def follow(self, of_channels: ChannelRules | None = None, of_topics: TopicRules | None = None) -> None:
        self.policy.of_channels = of_channels or ChannelRules()
        self.policy.of_topics = of_topics or TopicRules()
        self.node.broker.rules_changed(["t"])
        self.node.turn()


def buried(it: Bounded, channel: str = "c") -> list[tuple[int, int]]:
    """Return sequence and attempts of what is buried."""
    burials = it.node.broker.topics["t"].channels[channel].buried_queue.buried.from_place(0)
    return [(burial.sequence, burial.attempts) for burial in burials]
