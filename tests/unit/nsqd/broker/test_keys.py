"""A key stands for the batch that was published with it, for a while."""

from __future__ import annotations

import pytest

from nsqd.broker.batch import Receipt
from nsqd.broker.keys import KeyMemory
from nsqd.broker.topic import Topic
from tests.support.node import Node

SECOND = 1_000_000_000


def test_a_key_is_known_until_its_time_is_over() -> None:
    memory, receipt = KeyMemory(10), Receipt()
    memory.add(b"k", 100, receipt)
    assert memory.find(b"k", 109) is receipt
    assert memory.find(b"k", 110) is None
    assert memory.find(b"other", 100) is None


def test_keys_whose_time_is_over_take_no_room() -> None:
    memory = KeyMemory(10)
    for number in range(100):
        memory.add(b"%d" % number, number, Receipt())
    assert len(memory) == 10


def test_there_is_a_bound() -> None:
    memory = KeyMemory(SECOND, most=3)
    for key in (b"a", b"b", b"c", b"a", b"d"):
        memory.add(key, 5, Receipt())
    assert [key for key in (b"a", b"b", b"c", b"d") if memory.find(key, 5)] == [b"a", b"c", b"d"]


def test_keys_of_the_log_are_known_and_settled() -> None:
    receipt = KeyMemory(10, [(b"k", 100)]).find(b"k", 105)
    assert receipt is not None
    assert (receipt.settled, receipt.error) == (True, None)


# In a topic


def publish(topic: Topic, key: bytes) -> Receipt:
    return topic.publish(b"\0\0\0\1x", (0, 5), key=key)


@pytest.fixture
def node() -> Node:
    return Node(idempotence_window=60 * SECOND)


def count(node: Node) -> int:
    return node.topic().message_count


def test_the_same_key_publishes_once(node: Node) -> None:
    topic = node.broker.topic("t")
    first = publish(topic, b"k")
    assert publish(topic, b"k") is first  # even before it is written
    node.turn()
    assert first.settled
    again = publish(topic, b"k")
    node.turn()
    assert (again.settled, again.error, count(node)) == (True, None, 1)
    publish(topic, b"other")
    publish(node.broker.topic("u"), b"k")  # a key of another topic
    node.turn()
    assert (count(node), node.topic("u").message_count) == (2, 1)


def test_what_could_not_be_written_may_be_published_again(node: Node) -> None:
    topic = node.broker.topic("t")
    node.store.error = "disk on fire"
    assert publish(topic, b"k").error is None
    node.turn()
    node.store.error = None
    again = publish(topic, b"k")
    node.turn()
    assert (again.error, count(node)) == (None, 1)


def test_what_stays_in_the_log_is_not_published_again(node: Node) -> None:
    topic = node.broker.topic("t")
    receipt = publish(topic, b"k")
    receipt.settle("not synced", stays=True)
    node.turn()
    again = publish(topic, b"k")
    node.turn()
    assert (again.settled, again.error, count(node)) == (True, None, 0)


def test_without_a_window_nothing_is_remembered() -> None:
    topic = Node().broker.topic("t")
    assert publish(topic, b"k") is not publish(topic, b"k")
