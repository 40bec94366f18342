"""What one client sends may be much, but others have their turn in between, and the log does not grow with it."""

from __future__ import annotations

import pytest

from common.wire.commands import fin, nop, pub, touch
from nsqd.protocol import _MOST_COMMANDS, _MOST_FAILURES
from tests.support.node import Client, Node


def steps_until_done(node: Node, client: Client) -> int:
    """How often the poller has to come back."""
    steps = 0
    while not client.handler.reading:
        assert client.handler.next_deadline < node.now + 0.001
        node.pass_time(0.001)
        steps += 1
    return steps


@pytest.mark.parametrize("command", [nop(), b"NOP\r\n", touch(b"0123456789abcdef")])
def test_a_flood_is_carried_out_some_commands_at_a_time(command: bytes) -> None:
    node = Node()
    client = node.consumer()
    client.say(command * (3 * _MOST_COMMANDS - 1) + b"CLS\n")
    assert not client.handler.reading
    assert steps_until_done(node, client) >= 2
    assert b"CLOSE_WAIT" in client.answers()


def test_what_comes_in_one_read_of_an_honest_publisher_is_carried_out_at_once() -> None:
    client = Node().client()
    client.say(pub("t", bytes(200)) * (120 * 1024 // 215))
    assert client.handler.reading


def test_what_comes_meanwhile_is_kept_in_its_order() -> None:
    node = Node()
    client = node.consumer()
    client.say(nop() * 3000)
    client.say(b"CLS\n")
    assert client.answers() == []
    steps_until_done(node, client)
    assert client.answers() == [b"CLOSE_WAIT"]


def test_who_has_said_all_is_heard_out_before_its_end() -> None:
    node = Node()
    client = node.client()
    client.say(nop() * 3000 + pub("t", b"x"))
    client.handler.end()
    node.turn()
    assert not client.handler.finished
    for _ in range(3):
        node.pass_time(0.001)
    assert client.answers() == [b"OK"]
    assert client.handler.finished


def test_who_is_dropped_meanwhile_is_gone() -> None:
    node = Node()
    client = node.client()
    client.say(nop() * 3000)
    client.handler.abort()
    node.pass_time(0.001)
    assert client.handler.aborted
    assert client.handler.finished


def test_heartbeats_go_on() -> None:
    node = Node()
    client = node.client()
    client.say(nop() * 3000)
    node.pass_time(30.0)
    assert client.answers() == [b"_heartbeat_"]


def test_failing_fins_are_answered_some_at_a_time_and_logged_seldom() -> None:
    node = Node()
    client = node.consumer()
    count = 5 * _MOST_FAILURES
    client.say(fin(b"0123456789abcdef") * count)
    assert not client.handler.reading
    steps_until_done(node, client)
    answers = client.answers()
    assert answers == [b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"] * count
    errors = [text for kind, text in client.notes if kind == "error"]
    assert len(errors) == 10
    client.handler.end()
    assert ("info", b"%d more lines about its messages were left out" % (count - 10)) in client.notes


def test_a_client_is_not_taken_for_silent_while_it_is_nsqd_that_is_late() -> None:
    node = Node()
    client = node.client()
    client.say(nop() * 3000 + pub("t", b"x"))
    node.pass_time(61.0)  # the process was stopped, say; 60 seconds are the client's read deadline
    for _ in range(3):
        node.pass_time(0.001)
    assert client.handler.reading
    assert client.answers()[-1] == b"OK"
