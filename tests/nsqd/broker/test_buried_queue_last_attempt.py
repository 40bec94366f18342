"""A message that fails at its last attempt is buried; too many buried messages pause the channel."""

from __future__ import annotations

from nsqcommon.wire.commands import mpub, req
from nsqd.broker.rules import ChannelRules
from tests.nsqd.broker.burying import channel_of, consumer_of, node_with, node_with_two_buried
from tests.support.given_rules import GivenRules
from tests.support.node import Node


def test_a_message_is_buried_when_its_last_attempt_is_requeued() -> None:
    node = node_with(b"a", max_attempts=2)
    consumer = node.consumer(ready=1)
    for attempt in (1, 2):
        (a,) = consumer.messages()
        assert a.attempts == attempt
        consumer.say(req(a.id, 0))
    assert consumer.messages() == []
    (burial,) = channel_of(node).buried_queue.buried.from_place(0)
    assert (burial.attempts, burial.note.reason) == (2, "2 attempts, the last one requeued")


def test_a_message_is_buried_when_its_last_attempt_times_out() -> None:
    node = node_with(b"a", b"b", max_attempts=1)
    consumer = node.consumer(ready=2)
    consumer.messages()
    node.pass_time(61.0)
    reasons = [(it.sequence, it.note.reason) for it in channel_of(node).buried_queue.buried.from_place(0)]
    assert reasons == [(0, "1 attempts, the last one timed out"), (1, "1 attempts, the last one timed out")]
    assert node.channel().timeout_count == 2
    assert sum(change[0] == "bury" for change in node.store.journal) == 1


def test_a_message_that_had_its_attempts_before_the_rule_is_buried_where_it_would_be_delivered() -> None:
    node = node_with(b"a", b"b")
    consumer = node.consumer(ready=2)
    a, _ = consumer.messages()
    consumer.say(b"RDY 0\n" + req(a.id, 0))
    assert isinstance(node.policy, GivenRules)
    node.policy.of_channels = ChannelRules(max_attempts=1)
    node.broker.rules_changed(["t"])
    consumer.say(b"RDY 5\n")
    assert consumer.messages() == []
    (burial,) = channel_of(node).buried_queue.buried.from_place(0)
    assert (burial.sequence, burial.note) == (0, ("1 attempts", ""))


def test_an_attempt_that_does_not_count_is_made_again() -> None:
    node = node_with(b"a", max_attempts=1)
    consumer = node.consumer(ready=1)
    for _ in range(3):
        (a,) = consumer.messages()
        assert a.attempts == 1
        found = channel_of(node)
        assert found.requeue(consumer_of(found, consumer), a.id, 0, node.now, counts=False) is None
        node.turn()
    assert node.channel().buried_count == 0


def test_in_memory_the_last_attempt_drops_the_message() -> None:
    node = Node(policy=GivenRules(ChannelRules(max_attempts=1)))
    node.broker.topic("t").channel("c#ephemeral")
    node.client().say(mpub("t", [b"a"]))
    consumer = node.consumer(channel="c#ephemeral")
    (a,) = consumer.messages()
    consumer.say(req(a.id, 0))
    assert consumer.messages() == []
    assert node.channel(channel="c#ephemeral").depth == 0


def test_too_many_buried_messages_pause_the_channel_which_says_why() -> None:
    node = node_with_two_buried(max_buried=1)
    assert channel_of(node).paused
    assert channel_of(node).paused_why == "more than 1 messages are buried (max_buried)"
    node.crash()
    assert channel_of(node).paused_why == "more than 1 messages are buried (max_buried)"
    channel_of(node).unpause()
    node.turn()
    node.crash()
    assert not channel_of(node).paused
    assert channel_of(node).paused_why == ""
