"""Publishing by one client, without the rest of the client."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import Publications, PublishCommand
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqd.client.outbox import Outbox
from nsqd.client.publisher import ClientPublisher
from nsqd.client.work_budget import COST_OF_DEFERRAL, COST_OF_TOPIC, WorkBudget
from tests.support.node import Node


class Publishing:
    def __init__(self) -> None:
        self.node = Node()
        self.outbox = Outbox(lambda: None)
        self.stretch = WorkBudget()
        self.publisher = ClientPublisher(self.node.broker, self.outbox, self.stretch, max_defer_ms=1000)

    def publish(self, *params: bytes, body: bytes = b"x") -> None:
        self.publisher.admit(params[0], list(params))
        self.publisher.publish(PublishCommand(list(params), len(body).to_bytes(4) + body))

    def publish_many(self, topic: bytes, *bodies: bytes) -> None:
        params = [b"MPUB", topic]
        self.publisher.admit(b"MPUB", params)
        payload, offsets = b"", [0]
        for body in bodies:
            payload += len(body).to_bytes(4) + body
            offsets.append(len(payload))
        self.publisher.publish_many(Publications(params, payload, offsets))


@pytest.fixture
def publishing() -> Publishing:
    return Publishing()


def test_a_publish_makes_the_topic_and_owes_an_ok(publishing: Publishing) -> None:
    publishing.publish(b"PUB", b"t")
    assert publishing.outbox.owed == 1
    publishing.node.turn()
    assert publishing.node.topic("t").message_count == 1


def test_messages_are_counted_by_topic(publishing: Publishing) -> None:
    publishing.publish(b"PUB", b"a")
    publishing.publish(b"PUB", b"b")
    publishing.publish_many(b"a", b"x", b"y")
    assert publishing.publisher.counts == {"a": 3, "b": 1}


def test_the_same_topic_need_not_be_checked_again(publishing: Publishing) -> None:
    params = [b"PUB", b"t"]
    assert not publishing.publisher.is_as_before(params)
    publishing.publish(*params)
    assert publishing.publisher.is_as_before(params)
    assert not publishing.publisher.is_as_before([b"PUB", b"u"])
    assert not publishing.publisher.is_as_before([b"PUB"])
    publishing.node.broker.delete_topic("t")
    assert not publishing.publisher.is_as_before(params)


def test_a_topic_that_is_deleted_under_the_body_is_made_again(publishing: Publishing) -> None:
    publishing.publish(b"PUB", b"t")
    publishing.publisher.admit(b"PUB", [b"PUB", b"t"])
    publishing.node.broker.delete_topic("t")
    publishing.publisher.publish(PublishCommand([b"PUB", b"t"], b"\0\0\0\1x"))
    publishing.node.turn()
    assert publishing.node.topic("t").message_count == 1


def test_new_topics_and_deferrals_cost_more_than_a_command(publishing: Publishing) -> None:
    publishing.publish(b"PUB", b"t")
    assert publishing.stretch.spent == COST_OF_TOPIC
    publishing.publish(b"DPUB", b"t", b"100")
    assert publishing.stretch.spent == COST_OF_TOPIC + COST_OF_DEFERRAL
    publishing.publish(b"PUB", b"t")
    assert publishing.stretch.spent == COST_OF_TOPIC + COST_OF_DEFERRAL


@pytest.mark.parametrize(
    ("params", "fault", "detail"),
    [
        ([b"PUB"], Fault.INVALID, b"PUB insufficient number of parameters"),
        ([b"DPUB", b"t"], Fault.INVALID, b"DPUB insufficient number of parameters"),
        ([b"PUB", b"a b"], Fault.BAD_TOPIC, b'PUB topic name "a b" is not valid'),
        ([b"MPUB", b"?"], Fault.BAD_TOPIC, b'E_BAD_TOPIC MPUB topic name "?" is not valid'),
        ([b"DPUB", b"t", b"soon"], Fault.INVALID, b"DPUB could not parse timeout soon"),
        ([b"DPUB", b"t", b"1001"], Fault.INVALID, b"DPUB timeout 1001 out of range 0-1000"),
    ],
)
def test_parameters_are_refused(publishing: Publishing, params: list[bytes], fault: Fault, detail: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        publishing.publisher.admit(params[0], params)
    assert (caught.value.fault, caught.value.detail) == (fault, detail)


def test_a_topic_that_takes_nothing_is_an_error_of_the_command(publishing: Publishing) -> None:
    publishing.publish_many(b"t", b"x")
    publishing.node.broker.topic("t").close()
    with pytest.raises(ProtocolError) as caught:
        publishing.publisher.publish_many(Publications([b"MPUB", b"t"], b"\0\0\0\1x", [0, 5]))
    assert (caught.value.fault, caught.value.detail) == (Fault.MPUB_FAILED, b"MPUB failed exiting")
    assert publishing.outbox.owed == 1
