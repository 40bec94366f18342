"""The order of a client's answers, with receipts that a test settles."""

from __future__ import annotations

import pytest

from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.frames import OK_FRAME, Piece
from nsqd.broker.batch import Receipt
from nsqd.broker.topic import Topic
from nsqd.client.outbox import Outbox
from tests.support.node import Node


class Owed:
    """An outbox, and how often it woke the connection."""

    def __init__(self) -> None:
        self.wakes = 0
        self.releases = 0
        self.outbox = Outbox(self._wake)
        self.topic = self.other_topic()

    def other_topic(self) -> Topic:
        return Node().broker.topic("t")

    def _wake(self) -> None:
        self.wakes += 1

    def release(self) -> None:
        self.releases += 1

    def publish(self, topic: Topic | None = None, receipt: Receipt | None = None) -> Receipt:
        receipt = receipt or Receipt()
        self.outbox.owe(receipt, b"PUB", (topic or self.topic).feed)
        return receipt

    def subscribe(self, receipt: Receipt | None = None) -> None:
        self.outbox.owe_subscription(receipt, self.topic.feed, self.release)

    def get(self) -> list[Piece]:
        assert self.outbox.release() is None
        return self.outbox.take()


@pytest.fixture
def owed() -> Owed:
    return Owed()


def test_an_answer_that_waits_for_nothing_leaves_at_once(owed: Owed) -> None:
    owed.outbox.respond(b"a")
    assert not owed.outbox.held
    assert owed.outbox.take() == [b"a"]
    assert owed.outbox.take() == []


def test_an_ok_waits_for_its_receipt_and_what_follows_waits_with_it(owed: Owed) -> None:
    receipt = owed.publish()
    owed.outbox.respond(b"a")
    assert owed.get() == []
    assert owed.outbox.held
    receipt.settle()
    assert owed.get() == [OK_FRAME, b"a"]
    assert not owed.outbox.held


def test_a_receipt_that_is_settled_early_waits_for_the_one_before(owed: Owed) -> None:
    first, second = owed.publish(), owed.publish()
    second.settle()
    assert owed.get() == []
    first.settle()
    assert owed.get() == [OK_FRAME, OK_FRAME]


def test_publishes_of_one_batch_leave_together(owed: Owed) -> None:
    receipt = owed.publish()
    owed.publish(receipt=receipt)
    assert owed.outbox.owed == 2
    receipt.settle()
    assert owed.get() == [OK_FRAME, OK_FRAME]


def test_only_answers_count_as_owed(owed: Owed) -> None:
    owed.subscribe()
    receipt = owed.publish()
    owed.outbox.respond(b"a")
    owed.outbox.send_messages([b"head", b"body"])
    assert owed.outbox.owed == 2
    receipt.settle()
    assert owed.get() == [OK_FRAME, OK_FRAME, b"a", b"head", b"body"]
    assert owed.outbox.owed == 0


def test_the_connection_is_woken_when_the_first_receipt_is_settled(owed: Owed) -> None:
    first, second = owed.publish(), owed.publish()
    owed.get()
    owed.get()
    second.settle()
    assert owed.wakes == 0
    first.settle()
    assert owed.wakes == 1


def test_a_failed_publish_is_the_last_answer(owed: Owed) -> None:
    first, second, third = owed.publish(), owed.publish(), owed.publish()
    first.settle()
    second.settle("no space left on device")
    third.settle()
    error = owed.outbox.release()
    assert isinstance(error, ProtocolError)
    assert (error.fault, error.detail) == (Fault.PUB_FAILED, b"PUB failed no space left on device")
    assert owed.outbox.take() == [OK_FRAME]
    assert not owed.outbox.held
    assert owed.outbox.owed == 0


def test_messages_wait_for_the_publish_to_their_own_topic(owed: Owed) -> None:
    owed.subscribe()
    receipt = owed.publish()
    owed.outbox.send_messages([b"m"])
    assert owed.get() == [OK_FRAME]
    receipt.settle()
    assert owed.get() == [OK_FRAME, b"m"]


def test_messages_overtake_publishes_to_other_topics(owed: Owed) -> None:
    owed.subscribe()
    owed.publish(topic=owed.other_topic())
    owed.outbox.send_messages([b"m"])
    assert owed.get() == [OK_FRAME, b"m"]
    assert owed.outbox.held


def test_messages_wait_for_the_ok_of_a_subscription_that_waits_for_the_journal(owed: Owed) -> None:
    receipt = Receipt()
    owed.subscribe(receipt)
    owed.outbox.send_messages([b"m"])
    assert owed.get() == []
    receipt.settle()
    assert owed.releases == 1
    assert owed.get() == [OK_FRAME, b"m"]


def test_messages_wait_for_the_ok_of_a_subscription_behind_a_publish(owed: Owed) -> None:
    receipt = owed.publish(topic=owed.other_topic())
    owed.subscribe()
    owed.outbox.send_messages([b"m"])
    assert owed.get() == []
    receipt.settle()
    assert owed.get() == [OK_FRAME, OK_FRAME, b"m"]


def test_views_leave_as_they_are_but_do_not_wait_as_views(owed: Owed) -> None:
    view = memoryview(bytearray(b"batch"))
    owed.subscribe()
    owed.get()
    owed.outbox.send_views([b"head", view])
    assert any(piece is view for piece in owed.get())
    receipt = owed.publish()
    owed.outbox.send_views([b"head", view])
    receipt.settle()
    got = owed.get()
    assert got == [OK_FRAME, b"head", b"batch"]
    assert all(type(piece) is bytes for piece in got)


def test_messages_wake_the_connection(owed: Owed) -> None:
    owed.outbox.send_messages([b"m"])
    assert owed.wakes == 1


def test_nothing_is_left_of_what_was_cleared(owed: Owed) -> None:
    owed.outbox.respond(b"a")
    owed.publish()
    owed.outbox.clear()
    assert owed.get() == []
    assert not owed.outbox.held
