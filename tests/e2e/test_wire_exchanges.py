"""Exchanges byte for byte, as any NSQ client may rely on them, also where others use what we have added."""

from __future__ import annotations

import re
from struct import pack
from typing import Any

import pytest

from nsqcommon.wire.commands import MAGIC
from tests.support.process import Nsqd

OK = bytes.fromhex("00000006 00000000 4f4b")


@pytest.fixture(params=["plain", "with extensions"])
def topic(request: pytest.FixtureRequest, nsqd: Nsqd, topic: str) -> str:
    """Return a topic; one "with extensions" has messages with a key, headers and a ttl, waiting in another channel."""
    if request.param == "with extensions":
        nsqd.post(f"/topic/create?topic={topic}")
        nsqd.post(f"/channel/create?topic={topic}&channel=other")
        for key in "ab":
            headers = {"Nsq-Header-a.b": "1", "Nsq-Header-nsq-ttl": "600000"}
            assert nsqd.http("POST", f"/pub?topic={topic}&key={key}", b"x", headers=headers).status == 200
    return topic


def published(nsqd: Nsqd, topic: str) -> Any:
    found = nsqd.topic(topic)
    return found["message_count"] if found else 0


def exactly(count: int, nsqd: Nsqd, *sent: bytes) -> bytes:
    """Send these bytes, and return `count` bytes of the answer."""
    client = nsqd.connect(magic=b"")
    client.send(*sent)
    return client.raw(count)


def test_a_subscription_is_answered_ok(nsqd: Nsqd, topic: str) -> None:
    sent = bytes.fromhex("20205632") + f"SUB {topic} c\n".encode()
    assert exactly(len(OK), nsqd, sent) == OK


def test_a_message_as_it_is_published_and_consumed(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic)
    consumer.send(b"RDY 1\n")
    assert exactly(len(OK), nsqd, MAGIC, f"PUB {topic}\n".encode(), bytes.fromhex("00000005 68656c6c6f")) == OK
    frame = consumer.raw(39)
    assert frame[:8] == bytes.fromhex("00000023 00000002")
    assert frame[16:18] == bytes.fromhex("0001")
    assert re.fullmatch(b"[0-9a-f]{16}", frame[18:34])
    assert frame[34:] == b"hello"
    consumer.send(b"FIN " + frame[18:34] + b"\n")
    assert consumer.stays_silent(0.1)
    assert nsqd.channel(topic)["in_flight_count"] == 0


def test_a_message_with_headers_and_a_key_is_as_any_other_to_who_does_not_ask(nsqd: Nsqd, topic: str) -> None:
    consumer = nsqd.connect()
    consumer.subscribe(topic)
    consumer.send(b"RDY 1\n")
    nsqd.http(
        "POST", f"/pub?topic={topic}&key=k", b"hello", headers={"Nsq-Header-a": "1", "Nsq-Header-nsq-ttl": "600000"}
    )
    frame = consumer.raw(39)
    assert (frame[:8], frame[16:18], frame[34:]) == (bytes.fromhex("00000023 00000002"), b"\0\1", b"hello")


def test_many_messages_in_one_command(nsqd: Nsqd, topic: str) -> None:
    body = bytes.fromhex("00000010 00000002 00000002 6161 00000002 6262")
    before = published(nsqd, topic)
    assert exactly(len(OK), nsqd, MAGIC, f"MPUB {topic}\n".encode(), body) == OK
    assert published(nsqd, topic) == before + 2


def test_an_unknown_command_is_named_and_ends_the_connection(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    client.send(b"FOO x\n")
    assert client.rest() == bytes.fromhex("00000021 00000001") + b"E_INVALID invalid command FOO"


@pytest.mark.parametrize("magic", [b"  V1", b"GET ", b"\0\0\0\0"])
def test_another_magic_is_a_bad_protocol(nsqd: Nsqd, magic: bytes) -> None:
    client = nsqd.connect(magic=magic)
    assert client.rest() == bytes.fromhex("00000012 00000001") + b"E_BAD_PROTOCOL"


def test_cls_is_answered_close_wait(nsqd: Nsqd, topic: str) -> None:
    sent = MAGIC + f"SUB {topic} c\n".encode() + b"CLS\n"
    assert exactly(28, nsqd, sent) == OK + bytes.fromhex("0000000e 00000000") + b"CLOSE_WAIT"


def test_heartbeats_come_by_themselves(nsqd: Nsqd) -> None:
    body = b'{"heartbeat_interval":1000}'
    sent = MAGIC + b"IDENTIFY\n" + pack(">i", len(body)) + body
    assert exactly(29, nsqd, sent) == OK + bytes.fromhex("0000000f 00000000") + b"_heartbeat_"


def test_binary_mpub_over_http_has_no_body_size(nsqd: Nsqd, topic: str) -> None:
    body = bytes.fromhex("00000002 00000002 6161 00000002 6262")
    before = published(nsqd, topic)
    answer = nsqd.http("POST", f"/mpub?topic={topic}&binary=true", body)
    assert (answer.status, answer.body) == (200, b"OK")
    assert published(nsqd, topic) == before + 2
