"""The answers to `/nodes`, by nsqlookupds that are broken or hostile as well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqclient.core.listings import BadAnswer, parse_lookupd
from nsqclient.core.membership import MOST_NODES, Membership, NodeEntry
from nsqclient.core.node_list import NodeList, nodes_target, read_nodes
from nsqclient.events import Event, NodeIgnored


def node(host: object = "n1", port: object = 4150, **more: object) -> dict[str, object]:
    return {"broadcast_address": host, "tcp_port": port, **more}


def answer(*nodes: object) -> bytes:
    return json.dumps({"producers": nodes}).encode()


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("lk:4161", "/nodes"),
        ("http://lk:4161/", "/nodes"),
        ("http://lk:4161/foo/lookup?extra=1", "/foo/nodes?extra=1"),
        ("http://lk:4161/foo/nodes", "/foo/nodes"),
    ],
)
def test_the_question(text: str, asked: str) -> None:
    assert nodes_target(parse_lookupd(text, "/nodes")) == asked


def test_the_question_that_waits() -> None:
    lookupd = parse_lookupd("lk:4161")
    assert nodes_target(lookupd, wait=60, index="7") == "/nodes?wait=60s&index=7"
    assert nodes_target(lookupd, wait=60, index="7\r\nX: y") == "/nodes?wait=60s&index=7%0D%0AX%3A%20y"


def test_what_a_node_says_of_itself() -> None:
    entries, ignored = read_nodes(
        200,
        answer(
            node("n1", 4150, state="full", topology_zone="z", topology_region="r"),
            node("::1", 5150, reachable=False),
            node("127.0.0.1", 4150, state=7, topology_zone="x" * 1000, hostname=None),
        ),
    )
    assert entries == [
        NodeEntry("n1:4150", "full", zone="z", region="r"),
        NodeEntry("[::1]:5150", is_reachable=False),
        NodeEntry("127.0.0.1:4150"),
    ]
    assert not ignored


def test_the_form_of_old_versions() -> None:
    body = json.dumps({"status_code": 200, "data": {"producers": [node()]}}).encode()
    assert read_nodes(200, body)[0] == [NodeEntry("n1:4150")]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"message": "NOT_FOUND"}'),
        (302, b""),
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"producers": {}}'),
        (200, b'{"producers": null}'),
        (200, b'{"producers": [1]}'),
        (200, b'{"producers": [{}]}'),
        (200, b'{"data": []}'),
        (200, b"[" * 100_000),
        (200, answer(*[node()] * (MOST_NODES + 1))),
        (200, answer(*[1] * 1_000_000)),
    ],
)
def test_an_answer_that_is_none_fails(status: int, body: bytes) -> None:
    with pytest.raises(BadAnswer):
        read_nodes(status, body)


@pytest.mark.parametrize(
    "bad",
    [
        node("169.254.169.254", 80),
        node("fe80::1"),
        node("::ffff:169.254.169.254"),
        node("2001:db8::1%eth0"),
        node("2001:db8::1%a\n2026 ERROR forged"),
        node("0.0.0.0"),
        node("::"),
        node("224.0.0.1"),
        node("255.255.255.255"),
        node("", 4150),
        node(None),
        node(7),
        node("/var/run/nsqd.sock"),
        node("a b"),
        node("h\r\nX"),
        node("user@host"),
        node("x" * 300),
        node("n1", 0),
        node("n1", -1),
        node("n1", 65536),
        node("n1", "4150"),
        node("n1", True),
        node("n1", 1e400),
    ],
)
def test_an_address_where_no_nsqd_can_be_is_left_out(bad: Any) -> None:
    entries, ignored = read_nodes(200, answer(bad, node("n2")))
    assert entries == [NodeEntry("n2:4150")]
    [(address, _)] = ignored.items()
    assert address.isascii()
    assert address.isprintable()


def test_each_problem_is_told_once() -> None:
    told: list[Event] = []
    membership = Membership()
    listing = NodeList(membership, clock=lambda: 0.0, emit=told.append)
    lookupd = parse_lookupd("lk:4161")
    for _ in range(3):
        listing.take(lookupd, 200, answer(node("169.254.1.1"), node("n1")))
    assert [type(event) for event in told] == [NodeIgnored]
    assert [listing.record_failure(lookupd, "refused") for _ in range(3)] == [True, False, False]
    listing.take(lookupd, 200, answer(node("n1")))
    assert listing.record_failure(lookupd, "refused")
    told.clear()
    for number in range(1000):
        listing.take(lookupd, 200, answer(node("169.254.1.1", number + 1)))
    assert len(told) < 100
    assert list(membership.members) == ["n1:4150"]
