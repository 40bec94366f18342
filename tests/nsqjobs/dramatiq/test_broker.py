"""NsqBroker without an nsqd: what it publishes, and how it answers."""

from __future__ import annotations

import time
from typing import Any, cast

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed, ConnectionFailed, QueueNotFound

from nsqclient import ConnectError, PublishRejected, PublishUnknown
from nsqjobs.dramatiq import NsqBroker
from nsqjobs.dramatiq.broker import NsqConsumer
from nsqjobs.link import Subscription
from tests.nsqjobs.held import FakeHeld
from tests.nsqjobs.link import FakeLink


class FakeSubscription:
    def __init__(self, *held: FakeHeld) -> None:
        self._held = list(held)

    def take(self, timeout: float) -> FakeHeld | None:
        return self._held.pop(0) if self._held else None


def consumer_of(*held: FakeHeld) -> NsqConsumer:
    return NsqConsumer(cast(Subscription, FakeSubscription(*held)), 0.0)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    link = FakeLink()
    monkeypatch.setattr("nsqjobs.dramatiq.broker.Link", lambda endpoint: link)
    return link


@pytest.fixture
def broker(link: FakeLink) -> NsqBroker:
    return NsqBroker()


def message(**options: object) -> dramatiq.Message[Any]:
    return dramatiq.Message("mails", "send", (1,), {}, options, message_id="id")


# Publishing


def test_a_message_says_in_its_headers_what_it_is(broker: NsqBroker, link: FakeLink) -> None:
    sent = broker.enqueue(message(retries=2))
    [(topic, body, delay, headers)] = link.published
    assert topic == "mails"
    assert dramatiq.Message.decode(body) == sent
    assert delay == 0
    assert headers == {"job-library": b"dramatiq", "job-name": b"send", "job-id": b"id", "job-retries": b"2"}


def test_a_delay_is_nsqds(broker: NsqBroker, link: FakeLink) -> None:
    before = time.time()
    sent = broker.enqueue(message(), delay=5000)
    [(topic, _, delay, headers)] = link.published
    assert sent.queue_name == topic == "mails"
    assert 0 < delay <= 5
    assert float(headers["job-eta"]) / 1000 >= before + 4.99
    assert not broker.get_declared_delay_queues()


@pytest.mark.parametrize("eta", ["soon", None])
def test_an_eta_that_is_no_time_means_at_once(broker: NsqBroker, link: FakeLink, eta: object) -> None:
    broker.enqueue(message(eta=eta))
    assert link.published[0][2] == 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectError("refused"), ConnectionFailed),
        (PublishUnknown("lost"), ConnectionClosed),
        (PublishRejected("E_BAD_MESSAGE", "E_BAD_MESSAGE too big"), PublishRejected),
    ],
)
def test_errors_are_dramatiqs(broker: NsqBroker, link: FakeLink, error: Exception, expected: type[Exception]) -> None:
    link.error = error
    with pytest.raises(expected):
        broker.enqueue(message())


def test_a_queue_that_nobody_has_declared(broker: NsqBroker) -> None:
    for ask in (broker.consume, broker.flush, broker.join):
        with pytest.raises(QueueNotFound):
            ask("mails")


# Answers


def test_the_worker_never_sees_an_eta() -> None:
    got = next(consumer_of(FakeHeld(message(eta=1, other=2).encode())))
    assert got is not None
    assert got.options == {"other": 2}


def test_what_is_no_message_is_buried() -> None:
    held = FakeHeld(b"{")
    assert next(consumer_of(held)) is None
    [(verb, reason)] = held.said
    assert verb == "bury"
    assert reason.startswith("Failed to decode message.")


def test_a_dead_letter_is_buried_with_its_error() -> None:
    held = FakeHeld(message().encode())
    consumer = consumer_of(held)
    got = next(consumer)
    assert got is not None
    got.stuff_exception(ValueError("no such order"))
    got.clear_exception()
    consumer.nack(got)
    assert held.said == [("bury", "ValueError: no such order")]


def test_what_was_not_begun_is_given_back() -> None:
    held = FakeHeld(message().encode())
    consumer = consumer_of(held)
    got = next(consumer)
    assert got is not None
    consumer.requeue([got])
    assert held.said == [("give back", 0.0, False)]


def test_a_message_whose_retry_was_not_sent_comes_back(broker: NsqBroker, link: FakeLink) -> None:
    @dramatiq.actor(broker=broker, queue_name="mails")
    def send(number: int) -> None: ...

    link.error = ConnectError("refused")
    lost, kept = FakeHeld(message().encode()), FakeHeld(message().encode())
    consumer = consumer_of(lost, kept)
    for error in (ValueError("not yet"), None):
        got = next(consumer)
        assert got is not None
        broker.emit_after("process_message", got, exception=error)
        consumer.ack(got)
    assert lost.said == [("give back", 5.0, True)]
    assert kept.said == ["finish"]


# Groups


def test_a_message_or_its_actor_says_the_group(broker: NsqBroker, link: FakeLink) -> None:
    @dramatiq.actor(broker=broker, queue_name="mails", nsq_group_by="account")
    def charge(account: str, amount: int) -> None: ...

    @dramatiq.actor(broker=broker, queue_name="mails", nsq_group_by=lambda account: account.lower())
    def refund(account: str) -> None: ...

    @dramatiq.actor(broker=broker, queue_name="mails")
    def send(order: int) -> None: ...

    charge.send("ana", 5)
    charge.send_with_options(kwargs={"account": "ben", "amount": 5}, delay=1000)
    charge.send_with_options(args=("ana", 5), nsq_group="cleo")
    refund.send("ANA")
    send.send(1)
    send.send_with_options(args=(1,), nsq_group="dora")
    assert link.groups == ["ana", "ben", "cleo", "ana", None, "dora"]
    retry = dramatiq.Message.decode(link.published[2][1]).copy(options={"retries": 1})
    broker.enqueue(retry, delay=10)
    assert link.groups[-1] == "cleo"
    with pytest.raises(ValueError, match="invalid group"):
        send.send_with_options(args=(1,), nsq_group="x" * 129)


def test_the_group_of_an_actor_that_is_a_class_is_an_argument_of_its_method(broker: NsqBroker, link: FakeLink) -> None:
    class Charge(dramatiq.GenericActor):
        Meta = type(  # type: ignore[assignment]  # dramatiq reads its attributes, and asks for no base class
            "Meta", (), {"broker": broker, "queue_name": "mails", "nsq_group_by": "account"}
        )

        def perform(self, account: str, amount: int) -> None: ...

    Charge.send("ana", 5)
    assert link.groups == ["ana"]
