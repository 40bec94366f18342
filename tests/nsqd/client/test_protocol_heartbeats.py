"""Heartbeats and read deadlines, with a clock that tests move."""

from __future__ import annotations

import json
from math import inf
from typing import Any

from nsqcommon.wire.commands import identify, nop, pub, sub
from tests.support.node import Client, Node

HEARTBEAT = b"_heartbeat_"


def identified(node: Node, **fields: Any) -> Client:
    client = node.client()
    assert client.answers(identify(json.dumps(fields).encode())) == [b"OK"]
    return client


def test_heartbeat_is_sent_every_thirty_seconds() -> None:
    node = Node()
    client = node.client()
    node.pass_time(29.9)
    assert client.hear() == b""
    node.pass_time(0.1)
    assert client.hear() == bytes.fromhex("0000000f 00000000") + HEARTBEAT


def test_before_the_magic_no_time_is_kept() -> None:
    node = Node()
    client = node.client(b"")
    assert client.protocol.next_deadline == inf
    node.pass_time(1e6)
    assert client.ask(b"  V2") == b""
    assert not client.is_closed


def test_silent_client_is_closed_after_two_intervals_without_an_error() -> None:
    node = Node()
    client = node.client()
    node.pass_time(59.9)
    client.hear()
    node.pass_time(0.1)
    assert client.hear() == b""
    assert client.is_closed


def test_any_command_shows_that_a_client_lives() -> None:
    node = Node()
    client = node.client()
    for command in (nop(), pub("t", b"x"), nop()):
        node.pass_time(50)
        client.say(command)
    assert not client.is_closed


def test_half_a_command_does_not() -> None:
    node = Node()
    client = node.client()
    node.pass_time(50)
    client.say(b"NO")
    node.pass_time(10)
    assert client.is_closed


def test_body_that_trickles_in_is_cut_off_with_an_error() -> None:
    node = Node()
    client = identified(node, heartbeat_interval=1000)
    client.say(b"PUB t\n\x00\x00\x00\x09")
    for _ in range(19):
        node.pass_time(0.1)
        client.say(b"x" if client.protocol.state else b"")
    node.pass_time(0.2)
    assert client.answers()[-1] == b"E_BAD_MESSAGE PUB failed to read message body"
    assert client.is_closed


def test_busy_client_gets_heartbeats_too() -> None:
    node = Node()
    client = identified(node, heartbeat_interval=1000)
    heard = []
    for _ in range(101):
        node.pass_time(0.05)
        heard += client.answers(nop())
    assert heard == [HEARTBEAT] * 5


def test_heartbeats_can_be_switched_off() -> None:
    node = Node()
    client = identified(node, heartbeat_interval=-1)
    node.pass_time(1e6)
    assert client.hear() == b""
    assert client.protocol.write_timeout == 60.0
    assert not client.is_closed


def test_second_identify_moves_the_read_deadline_but_not_the_heartbeats() -> None:
    node = Node()
    client = identified(node, heartbeat_interval=-1)
    client.ask(identify(b'{"heartbeat_interval": 1000}'))
    node.pass_time(1.9)
    assert client.hear() == b""
    node.pass_time(0.1)
    assert client.is_closed
    assert client.protocol.write_timeout == 1.0


def test_second_identify_does_not_change_how_messages_are_delivered() -> None:
    node = Node()
    client = identified(node, msg_timeout=1000, sample_rate=0)
    client.ask(identify(b'{"msg_timeout": 5000, "sample_rate": 99}'))
    client.ask(sub("t", "c") + b"RDY 1\n")
    client.say(pub("t", b"x"))
    [message] = client.messages()
    assert client.protocol.describe().sample_rate == 99
    node.pass_time(0.9)
    client.say(b"TOUCH " + message.id + b"\n")  # TOUCH does look at the later deadline
    node.pass_time(4.9)
    assert node.channel().in_flight_count == 1
    node.pass_time(0.2)
    assert node.channel().timeout_count == 1


def test_heartbeat_that_comes_late_is_made_up_for_once() -> None:
    node = Node()
    client = identified(node, heartbeat_interval=1000)
    client.say(nop())
    node.pass_time(1.5)
    assert client.answers() == [HEARTBEAT]
    node.pass_time(0.4)
    assert client.answers() == []
    client.say(nop())
    node.pass_time(0.11)
    assert client.answers() == [HEARTBEAT]


def test_nothing_is_due_once_the_client_is_closed() -> None:
    client = Node().client()
    client.say(b"FOO\n")
    assert client.protocol.next_deadline == inf
