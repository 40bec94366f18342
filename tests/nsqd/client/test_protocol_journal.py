"""A journal that cannot be written: the answers to clients, and what is found after a crash."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import dpub, fin, mpub, pub
from tests.support.node import Client, Node

FULL = "no space left on device"


def broken_node() -> Node:
    node = Node()
    node.client().ask(pub("t", b"before"))
    node.store.journal_error = FULL
    return node


@pytest.mark.parametrize("command", [b"SUB t c\n", b"SUB new c\n"])
def test_channel_that_is_not_in_the_journal_is_no_channel(command: bytes) -> None:
    client = broken_node().client()
    assert client.answers(command + b"RDY 1\n") == [b"E_SUB_FAILED SUB failed no space left on device"]
    assert client.is_closed


def test_channel_that_was_there_is_consumed() -> None:
    node = Node()
    consumer = node.consumer()
    consumer.hear()
    node.client().ask(pub("t", b"x"))
    node.store.journal_error = FULL
    (message,) = consumer.messages()
    assert consumer.ask(fin(message.id)) == b""
    assert node.client().answers(b"SUB t c\n") == [b"OK"]


def test_ok_of_sub_comes_before_the_messages() -> None:
    node = Node()
    node.client().ask(pub("t", b"x"))
    assert node.client().answers(b"SUB t c\nRDY 1\n") == [b"OK", b"<1> x"]


@pytest.mark.parametrize("topic", ["t", "new"])
def test_nothing_is_published(topic: str) -> None:
    node = broken_node()
    told = b" failed no space left on device"
    assert node.client().answers(pub(topic, b"x")) == [b"E_PUB_FAILED PUB" + told]
    assert node.client().answers(mpub(topic, [b"x"])) == [b"E_MPUB_FAILED MPUB" + told]
    assert node.client().answers(dpub(topic, 1000, b"x")) == [b"E_DPUB_FAILED DPUB" + told]
    assert node.topic(topic).depth == node.topic(topic).message_count == (1 if topic == "t" else 0)


def test_ephemeral_topics_need_no_journal() -> None:
    assert broken_node().client().answers(pub("t#ephemeral", b"x")) == [b"OK"]


def test_place_of_a_refused_deferral_is_free_again() -> None:
    node = Node()
    node.consumer().hear()
    node.store.journal_error = FULL
    node.client().ask(dpub("t", 60_000, b"refused"))
    node.store.journal_error = None
    node.client().ask(pub("t", b"x"))
    node.crash()
    consumer: Client = node.consumer()
    consumer.hear()
    node.load()
    assert consumer.answers() == [b"<1> x"]


def test_deferral_that_the_log_refuses_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.consumer().hear()
    log = node.store.logs["t"]
    monkeypatch.setattr(log, "refusal", lambda: FULL)
    node.broker.topics["t"].publish(b"\0\0\0\1x", [0, 5], 1000)
    node.broker.record_deferred()
    assert not any(change[0] == "defer" for change in node.store.unwritten)
