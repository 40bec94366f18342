"""Heartbeats, read deadlines and what IDENTIFY changes, with a clock that tests move."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

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


# IDENTIFY


def test_absent_names_replace_the_address() -> None:
    client = identified(Node())
    told = client.protocol.describe()
    assert (told.client_id, told.hostname, told.user_agent) == ("", "", "")


def test_identify_gives_names() -> None:
    client = identified(Node(), client_id="a", hostname="b", user_agent="c")
    told = client.protocol.describe()
    assert (told.client_id, told.hostname, told.user_agent) == ("a", "b", "c")


@pytest.mark.parametrize("body", [b"null", b" {} ", b'{"Client_ID": "x", "unknown": [1]}', b'{"client_id": null}'])
def test_documents_that_are_accepted(body: bytes) -> None:
    assert Node().client().answers(identify(body)) == [b"OK"]


@pytest.mark.parametrize(
    "body", [b"x", b"[]", b'{"heartbeat_interval": 1000.0}', b'{"feature_negotiation": 1}', b'{"client_id": 1}', b"{}x"]
)
def test_documents_that_are_not(body: bytes) -> None:
    client = Node().client()
    assert client.answers(identify(body)) == [b"E_BAD_BODY IDENTIFY failed to decode JSON body"]
    assert client.is_closed


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("heartbeat_interval", 999, "heartbeat interval"),
        ("heartbeat_interval", 60_001, "heartbeat interval"),
        ("heartbeat_interval", -2, "heartbeat interval"),
        ("output_buffer_timeout", 24, "output buffer timeout"),
        ("output_buffer_size", 63, "output buffer size"),
        ("sample_rate", 100, "sample rate"),
        ("sample_rate", -1, "sample rate"),
        ("msg_timeout", 999, "msg timeout"),
        ("msg_timeout", 900_001, "msg timeout"),
        ("msg_timeout", -1, "msg timeout"),
    ],
)
def test_settings_out_of_range(field: str, value: int, name: str) -> None:
    answer = Node().client().answers(identify(json.dumps({field: value}).encode()))
    assert answer == [f"E_BAD_BODY IDENTIFY {name} ({value}) is invalid".encode()]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (b"\x00\x00\x00\x00", b"IDENTIFY invalid body size 0"),
        (b"\xff\xff\xff\xff", b"IDENTIFY invalid body size -1"),
        (b"\x00\x00\x14\x01", b"IDENTIFY body too big 5121 > 5120"),
    ],
)
def test_size_of_the_document(size: bytes, text: bytes) -> None:
    assert Node().client().answers(b"IDENTIFY\n" + size) == [b"E_BAD_BODY " + text]


def test_negotiation_is_answered_with_what_is_in_force() -> None:
    body = b'{"feature_negotiation": true, "output_buffer_size": -1, "output_buffer_timeout": 1000, "snappy": true}'
    [answer] = Node().client().answers(identify(body))
    assert answer == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
        b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
        b'"output_buffer_size":1,"output_buffer_timeout":0,"topology_region":"","topology_zone":""}'
    )


def test_sampling_passes_a_share_on_and_finishes_the_rest() -> None:
    node = Node()
    client = identified(node, sample_rate=50)
    client.ask(sub("t", "c") + b"RDY 10\n")
    node.percents = [51, 50, 0, 99]
    node.client().say(pub("t", b"a") + pub("t", b"b") + pub("t", b"c") + pub("t", b"d"))
    assert client.answers() == [b"<1> b", b"<1> c"]
    assert (node.channel().depth, node.channel().in_flight_count) == (0, 2)
