"""A topic in which very much is parked begins to flow in slices: what it hands over, and what a crash leaves of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyroaring import BitMap64

from nsqcommon.wire.frames import OK_FRAME
from nsqd.broker.channel import Channel
from nsqd.broker.topic import Topic
from tests.support.node import Node

COUNT = 3_000  # deferred messages, of which a turn hands over
MOST = 2_000
LATER = 60_000  # ms


def park(node: Node, count: int = COUNT) -> Topic:
    """Return a topic that is paused, and has every other of its messages deferred."""
    topic = node.broker.topic("t")
    topic.channel("c")
    topic.pause()
    for number in range(count):
        topic.publish_one(b"\0\0\0\1x", LATER)
        topic.publish_one(b"\0\0\0\1%d" % (number % 10))
    node.turn()
    return topic


def channel_of(node: Node, name: str = "c") -> Channel:
    return node.broker.topics["t"].channels[name]


def finish(node: Node) -> int:
    """End turns until nothing is parked. Return how many, and see that none does much."""
    turns = 0
    while node.broker.starting:
        told = len(node.store.journal) + len(node.store.unwritten)
        node.turn()
        node.store.write_journal(force=True)
        assert len(node.store.journal) - told <= 2 * MOST + 100  # deferrals, and what was taken back
        turns += 1
    return turns


def has_everything(node: Node, name: str = "c") -> bool:
    channel = channel_of(node, name)
    return (len(channel.deferred), channel.depth, node.broker.topics["t"].depth) == (COUNT, COUNT, 0)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_pause_ends_in_slices(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    assert finish(node) > COUNT // MOST
    assert has_everything(node)
    assert topic.flowing


def test_a_first_channel_comes_in_slices(node: Node) -> None:
    topic = park(node)
    topic.delete_channel("c")
    topic.unpause()
    assert not node.broker.starting
    topic.channel("first")
    assert finish(node) > COUNT // MOST
    assert has_everything(node, "first")


def test_messages_come_in_order_while_more_of_the_topic_is_on_its_way(node: Node) -> None:
    topic = park(node)
    consumer = node.consumer(ready=2500)
    topic.unpause()
    node.turn()
    assert topic.starting
    bodies = [message.body for message in consumer.messages()]
    assert bodies == [b"%d" % (number % 10) for number in range(len(bodies))]
    assert len(bodies) > 500


def test_what_is_published_meanwhile_comes_behind_it(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    node.turn()
    assert node.client().ask(b"PUB t\n\0\0\0\4last") == OK_FRAME
    topic.publish_one(b"\0\0\0\1x", LATER)
    node.turn()
    finish(node)
    assert (len(channel_of(node).deferred), channel_of(node).depth) == (COUNT + 1, COUNT + 1)
    assert not channel_of(node).deferred.has_any(2 * COUNT, 2 * COUNT + 1)
    node.crash()
    assert (len(channel_of(node).deferred), channel_of(node).depth) == (COUNT + 1, COUNT + 1)


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_after_a_crash_it_goes_on_where_it_was(node: Node, turns: int) -> None:
    topic = park(node)
    topic.unpause()
    node.store.write_journal(force=True)
    for _ in range(turns):
        node.turn()
    node.store.write_journal(force=True)
    handed_over = topic.handed_over
    node.crash()
    assert node.broker.topics["t"].handed_over == handed_over
    finish(node)
    assert has_everything(node)
    node.pass_time(LATER / 1000 - 1)
    assert channel_of(node).depth == COUNT
    node.crash()
    assert has_everything(node)


def test_a_new_journal_tells_how_far_it_is(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    node.turn()
    assert topic.starting
    node.store.journal = [("snapshot", "t"), *(it for it in topic.snapshot_changes() if it is not None)]
    node.store.unwritten = []
    node.crash()
    finish(node)
    assert has_everything(node)


@pytest.mark.parametrize("stop", [Topic.pause, lambda topic: topic.delete_channel("c")])
def test_it_stops_where_it_is_and_goes_on_from_there(node: Node, stop: Callable[[Topic], object]) -> None:
    topic = park(node)
    topic.unpause()
    node.turn()
    stop(topic)
    at = topic.handed_over
    assert finish(node) == 0
    node.store.write_journal(force=True)
    node.crash()
    topic = node.broker.topics["t"]
    assert (topic.handed_over, topic.flowing) == (at, False)
    topic.unpause()
    channel = topic.channel("c")
    finish(node)
    assert topic.handed_over == topic.log.tail
    assert len(channel.deferred) + (at // 2 if at and channel.message_count < 2 * COUNT else 0) >= COUNT


def test_a_topic_that_is_emptied_or_deleted_meanwhile_hands_nothing_over(node: Node) -> None:
    topic = park(node)
    topic.unpause()
    node.turn()
    topic.empty()
    handed = len(channel_of(node).deferred)
    finish(node)
    assert (len(channel_of(node).deferred), topic.depth, topic.flowing) == (handed, 0, True)
    node.broker.delete_topic("t")
    topic = park(node)
    topic.unpause()
    node.broker.delete_topic("t")
    assert not node.broker.starting


def test_what_was_taken_back_singly_is_passed_in_slices_too(node: Node) -> None:
    topic = park(node)
    topic.cancel_beyond(BitMap64(range(1, 2 * COUNT, 2)))
    node.store.write_journal(force=True)
    topic.unpause()
    assert finish(node) > COUNT // MOST
    channel = channel_of(node)
    assert (len(channel.deferred), channel.depth) == (COUNT, 0)
    node.crash()
    channel = channel_of(node)
    assert (len(channel.deferred), channel.depth) == (COUNT, 0)


def test_a_channel_that_keeps_batches_gets_each_once() -> None:
    node = Node(mem_queue_size=10 * COUNT)
    topic = node.broker.topic("t")
    channel = topic.channel("c#ephemeral")
    topic.pause()
    for _ in range(3):
        topic.publish(b"\0\0\0\1x" * COUNT, range(0, 5 * COUNT + 1, 5))
        topic.publish_one(b"\0\0\0\1x", LATER)
    node.turn()
    topic.cancel_beyond(BitMap64(range(0, 3 * COUNT, 2)))
    topic.unpause()
    assert finish(node) > 2
    assert channel.kept is not None
    assert channel.kept.messages == channel.depth + len(channel.deferred)
    assert channel.kept.messages == 3 * COUNT + 3 - 3 * COUNT // 2


def test_a_little_is_handed_over_at_once(node: Node) -> None:
    topic = park(node, 500)
    topic.unpause()
    assert topic.flowing
    assert len(channel_of(node).deferred) == 500
