"""IDENTIFY: what it changes, which documents are accepted, and what is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqcommon.wire.commands import identify, pub, sub
from tests.support.node import Client, Node


def identified(node: Node, **fields: Any) -> Client:
    client = node.client()
    assert client.answers(identify(json.dumps(fields).encode())) == [b"OK"]
    return client


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
