"""Publishes that wait for the copy of a log are held back while that is far behind."""

from __future__ import annotations

from nsqd.broker.batch import Receipt
from nsqd.broker.topic import Topic
from tests.support.node import Node

BODY = b"\0\0\0\2ab"


class Copied:
    """A node with a copy, and a topic of which publishes wait for it."""

    def __init__(self) -> None:
        self.node = Node()
        self.most = 1000  # bytes that may be held back
        self.topic = self.node.broker.topic("t")
        self.log = self.node.store.logs["t"]
        self.log.has_copy = True
        self.topic.channel("c")
        self.node.turn()
        self.is_behind(True)

    def is_behind(self, is_it: bool) -> None:
        broker = self.node.broker
        broker.is_copy_behind = is_it
        broker.holds_back = lambda size: is_it and size <= self.most

    def publish(self, topic: Topic | None = None, delay_ms: int = 0, key: bytes = b"") -> Receipt:
        receipt = (topic or self.topic).publish_one(BODY, delay_ms, key)
        self.node.turn()
        return receipt


def test_publishes_wait_until_the_copy_has_caught_up() -> None:
    it = Copied()
    receipts = [it.publish(), it.publish(delay_ms=3_600_000)]
    assert it.log.tail == 0
    assert not any(receipt.settled for receipt in receipts)
    it.is_behind(False)
    it.node.turn()
    assert it.log.tail == 2
    assert [receipt.error for receipt in receipts if receipt.settled] == [None, None]
    assert (it.node.channel().depth, it.node.channel().deferred_count) == (1, 1)


def test_publishes_of_other_topics_go_on() -> None:
    it = Copied()
    it.publish()
    assert it.publish(it.node.broker.topic("other")).settled
    assert it.log.tail == 0


def test_more_than_memory_has_room_for_is_written() -> None:
    it = Copied()
    receipts = [it.publish()]
    it.most = 0
    receipts.append(it.publish())
    assert it.log.tail == 2
    assert all(receipt.settled for receipt in receipts)


def test_what_is_held_back_fails_when_publishes_are_refused() -> None:
    it = Copied()
    receipt = it.publish()
    it.log.why_refused = "remote: the store doesn't answer"
    it.node.turn()
    assert receipt.error == "remote: the store doesn't answer"
    assert it.log.tail == 0


def test_a_key_of_what_is_held_back_outlives_that_the_topic_is_emptied() -> None:
    """The message comes after those that were dropped, so a repeat would be stored as a second one."""
    it = Copied()
    it.publish(key=b"before")
    it.is_behind(False)
    it.node.turn()
    it.is_behind(True)
    keys = [b"one", b"two", b"later"]
    receipts = [it.publish(key=b"one"), it.publish(), it.publish(key=b"two"), it.publish(key=b"later", delay_ms=1)]
    it.topic.empty()
    it.node.turn()
    repeats = [it.publish(key=key) for key in keys]
    it.is_behind(False)
    it.node.turn()
    assert it.log.tail == 1 + len(receipts)
    assert all(receipt.error is None for receipt in [*receipts, *repeats] if receipt.settled)
    it.publish(key=b"before")
    assert it.log.tail == 2 + len(receipts), "the key of a message that was dropped is free"
    assert [it for it in it.node.store.journal if it[0] == "keys"][-1] == ("keys", "t", 1)
