"""Topics and channels that nobody uses are deleted when the policy says so."""

from __future__ import annotations

import pytest

from nsqd.broker import stats
from nsqd.broker.idle import Expired
from nsqd.broker.rules import ChannelRules, TopicRules
from tests.support.given_rules import GivenRules
from tests.support.node import Node

CHANNELS = ChannelRules(expire_after=100.0)
TOPICS = TopicRules(expire_after=100.0)
CHANNEL, TOPIC = Expired("t", "c", 100.0, False), Expired("t", "", 100.0, False)


def node_with(of_channels: ChannelRules | None = None, of_topics: TopicRules | None = None) -> Node:
    node = Node(policy=GivenRules(of_channels or ChannelRules(), of_topics or TopicRules()))
    node.broker.topic("t").channel("c")
    node.turn()
    return node


def look(node: Node, after: float = 0.0) -> list[Expired]:
    clients, node.clients = node.clients, []  # nobody is asked for a heartbeat
    node.pass_time(after)
    node.clients = clients
    found = node.broker.expire_idle(["t", "a topic that is gone"])
    node.turn()
    return found


def publish(node: Node) -> None:
    node.broker.topic("t").publish_one(b"\0\0\0\1x")
    node.turn()


def test_a_channel_without_consumers_goes_when_its_time_is_over() -> None:
    node = node_with(CHANNELS)
    assert look(node, 99.0) == []
    assert look(node, 1.0) == [CHANNEL]
    assert node.broker.topics["t"].channels == {}
    assert look(node, 1000.0) == []
    node.crash()
    assert node.broker.topics["t"].channels == {}


def test_its_time_begins_when_the_last_consumer_leaves() -> None:
    node = node_with(CHANNELS)
    first, second = node.consumer(), node.consumer()
    assert look(node, 1000.0) == []
    first.protocol.close()
    node.turn()
    assert look(node, 1000.0) == []
    second.protocol.close()
    node.turn()
    assert look(node, 99.0) == []
    assert look(node, 2.0) == [CHANNEL]


def test_a_channel_with_messages_stays_unless_it_may_go_with_them() -> None:
    node = node_with(CHANNELS)
    publish(node)
    assert look(node, 1000.0) == []
    consumer = node.consumer()
    assert len(consumer.messages()) == 1
    consumer.protocol.close()
    assert look(node, 30.0) == []  # in flight
    node.pass_time(60.0)
    consumer = node.consumer()
    node.load()
    consumer.say(b"".join(b"FIN %b\n" % it.id for it in consumer.messages()))
    consumer.protocol.close()
    node.turn()
    assert look(node, 100.0) == [CHANNEL]

    node = node_with(ChannelRules(expire_after=100.0, expire_full=True))
    publish(node)
    assert look(node, 100.0) == [CHANNEL]


def test_a_topic_without_publishes_goes_with_its_channels() -> None:
    node = node_with(of_topics=TOPICS)
    assert look(node, 99.0) == []
    assert look(node, 1.0) == [TOPIC]
    assert node.broker.topics == {}
    node.crash()
    assert node.broker.topics == {}


@pytest.mark.parametrize("is_consumed", [False, True])
def test_a_topic_that_is_published_to_stays(is_consumed: bool) -> None:
    node = node_with(of_topics=TOPICS)
    node.broker.topics["t"].delete_channel("c")
    if is_consumed:
        consumer = node.consumer(ready=10)
    for _ in range(3):
        publish(node)
        if is_consumed:
            consumer.say(b"".join(b"FIN %b\n" % it.id for it in consumer.messages()))
        assert look(node, 90.0) == []
    if is_consumed:
        assert look(node, 1000.0) == []  # somebody waits for it
        consumer.protocol.close()
        node.turn()
        assert look(node, 100.0) == [TOPIC]
    else:
        assert look(node, 1000.0) == []  # no channel got the messages


def test_full_topics_go_if_they_may() -> None:
    node = node_with(of_topics=TopicRules(expire_after=100.0, expire_full=True))
    publish(node)
    assert look(node, 99.0) == []  # this look has found the message
    assert look(node, 99.0) == []
    assert look(node, 2.0) == [TOPIC]


def test_dry_run_rules_delete_nothing() -> None:
    dry = frozenset({"expire_after"})
    node = node_with(
        ChannelRules(expire_after=100.0, dry=dry), TopicRules(expire_after=200.0, expire_full=True, dry=dry)
    )
    assert look(node, 150.0) == [CHANNEL._replace(is_dry_run=True)]
    assert look(node, 50.0) == [Expired("t", "", 200.0, True)]
    assert list(node.broker.topics["t"].channels) == ["c"]


# When it goes is told to who asks for ages


def told(node: Node) -> tuple[int | None, int | None]:
    """Return in how many seconds the topic and the channel go."""
    (topic,) = stats.snapshot(node.broker, ages_at=0.0).topics or ()
    (channel,) = topic.channels
    return _seconds_until(topic.expires_at, node), _seconds_until(channel.expires_at, node)


def _seconds_until(at: int | None, node: Node) -> int | None:
    return None if at is None else round((at - node.broker.turn.timestamp) / 1e9)


def test_it_is_told_when_something_unused_goes() -> None:
    node = node_with(CHANNELS, TopicRules(expire_after=200.0))
    assert told(node) == (200, 100)
    first = stats.snapshot(node.broker, ages_at=0.0).topics
    node.pass_time(60.25)
    assert told(node) == (140, 40)
    assert stats.snapshot(node.broker, ages_at=0.0).topics == first  # at each look the same, to the nanosecond
    consumer = node.consumer()
    assert told(node) == (None, None)
    consumer.protocol.close()
    node.turn()
    assert told(node) == (140, 100)


def test_what_does_not_go_has_no_such_time() -> None:
    node = node_with(CHANNELS, TOPICS)
    publish(node)
    assert told(node) == (None, None)  # it has a message
    dry = frozenset({"expire_after"})
    node = node_with(ChannelRules(expire_after=100.0, dry=dry), TopicRules(expire_after=100.0, dry=dry))
    assert told(node) == (None, None)
    assert [topic.expires_at for topic in stats.snapshot(node_with(CHANNELS, TOPICS).broker).topics or ()] == [None]


def test_what_may_go_with_its_messages_has_such_a_time_once_nobody_publishes() -> None:
    node = node_with(
        ChannelRules(expire_after=100.0, expire_full=True), TopicRules(expire_after=100.0, expire_full=True)
    )
    publish(node)
    assert told(node) == (None, 100)  # the next look finds that nobody publishes any more
    look(node, 10.0)
    assert told(node) == (100, 90)
