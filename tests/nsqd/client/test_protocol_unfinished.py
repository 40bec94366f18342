"""Clients with incomplete bodies share a bound on the memory for them."""

from __future__ import annotations

import pytest

from nsqcommon.wire.commands import mpub, pub
from nsqcommon.wire.unfinished import UnfinishedBodies
from tests.support.node import Node


@pytest.fixture
def node() -> Node:
    node = Node()
    node.unfinished = UnfinishedBodies(1000)
    return node


def test_the_client_whose_body_began_first_is_told_that_it_was_not_read(node: Node) -> None:
    first, second = node.client(), node.client()
    first.say(pub("t", b"x" * 900)[:600])
    assert not first.is_closed
    second.say(mpub("t", [b"x" * 450] * 2)[:600])
    assert first.answers() == [b"E_BAD_MESSAGE PUB failed to read message body"]
    assert first.is_closed
    assert not second.is_closed


def test_it_is_said_why(node: Node) -> None:
    first = node.client()
    first.say(pub("t", b"x" * 900)[:600])
    node.client().say(pub("t", b"x" * 900)[:600])
    assert any(b"--max-unfinished-bytes" in text for _, text in first.notes)


def test_what_has_become_whole_is_not_held_any_more(node: Node) -> None:
    for _ in range(5):
        client = node.client()
        command = pub("t", b"x" * 900)
        client.say(command[:600])
        assert node.unfinished.total == 600 - len(b"PUB t\n")
        assert client.answers(command[600:]) == [b"OK"]
        assert node.unfinished.total == 0


def test_a_client_that_has_gone_holds_nothing(node: Node) -> None:
    client = node.client()
    client.say(pub("t", b"x" * 900)[:600])
    client.protocol.abort()
    assert node.unfinished.total == 0


def test_a_client_may_give_itself_up_while_it_receives(node: Node) -> None:
    first, second = node.client(), node.client()
    first.say(pub("t", b"x" * 900)[:400])
    second.say(pub("t", b"x" * 900)[:400])
    first.say(b"x" * 400)
    assert first.is_closed
    assert second.answers(pub("t", b"x" * 900)[400:]) == [b"OK"]
