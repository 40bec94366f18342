"""What the reader does with messages that nobody waits for any more, without an nsqd."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, cast

import pytest

from nsqclient import Message, Unsupported
from nsqjobs.addresses import parse_url
from nsqjobs.celery.reader import PrefetchGroup, Reader, ReaderSubscription
from nsqjobs.celery.routing import QueueChannel


class FakeMessage:
    topic = "mails"

    def __init__(self, answered: str = "no") -> None:
        self.answered = answered
        self.said: list[Any] = []

    def finish(self) -> bool:
        self.said.append("finish")
        return self.answered == "no"

    def bury(self) -> bool:
        raise Unsupported("nsqd buries nothing")

    def requeue(self, *, backoff: bool) -> bool:
        self.said.append("requeue")
        return True


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader(parse_url("nsq://127.0.0.1:1"), lambda: None)
    yield reader
    reader.close()


def arrive(reader: Reader, subscription: ReaderSubscription, *messages: FakeMessage) -> None:
    """Have messages ready, as if they had come from nsqd."""
    for number, message in enumerate(messages):
        heapq.heappush(reader._ready, (0, number, subscription, cast(Message, message)))


def test_a_message_whose_connection_was_lost_while_it_waited_is_not_handed_out(reader: Reader) -> None:
    group = PrefetchGroup()
    subscription = ReaderSubscription(QueueChannel("mails", "jobs"), (), None, group, reader)
    lost, fine = FakeMessage("lost"), FakeMessage()
    arrive(reader, subscription, lost, fine)
    assert reader.take() == (subscription, cast(Message, fine))
    assert reader.take() is None
    reader.close()  # so that all orders are carried out
    assert group.taken == 1


@pytest.mark.parametrize(("channel", "said"), [("jobs", "requeue"), ("w#ephemeral", "finish")])
def test_a_job_that_nsqd_cannot_bury_is_not_lost(reader: Reader, channel: str, said: str) -> None:
    subscription = ReaderSubscription(QueueChannel("mails", channel), (), None, None, reader)
    message = FakeMessage()
    reader.answer(subscription, cast(Message, message), message.bury)
    reader.close()
    assert message.said == [said]
