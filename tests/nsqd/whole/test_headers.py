"""Headers of messages: in by TCP and HTTP, through the disk, and out to those that want them; nobody else notices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqcommon.wire.commands import hdpub, hmpub, hpub, pub, rdy, req, sub
from nsqcommon.wire.headers import NONE, decode_headers, encode_headers
from nsqcommon.wire.message import Message
from tests.support.brokers import StartNsqd
from tests.support.client import Client
from tests.support.process import Nsqd, eventually

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ONE = {"traceparent": TRACE.encode(), "who": b"\xff\x00raw"}


@pytest.fixture
def nsqd(start_nsqd: StartNsqd) -> Nsqd:
    started = start_nsqd()
    started.post("/topic/create?topic=t")
    for channel in ("new", "old"):
        started.post(f"/channel/create?topic=t&channel={channel}")
    return started


def connected(nsqd: Nsqd, *extensions: str) -> Client:
    client = nsqd.connect()
    client.identify(feature_negotiation=True, extensions=list(extensions))
    return client


def consumed(nsqd: Nsqd, count: int, channel: str = "new", *, headers: bool = True) -> list[Message]:
    """Take messages of a channel, and finish them."""
    with connected(nsqd, *(["headers"] if headers else [])) as client:
        client.subscribe("t", channel, ready=count)
        messages = client.messages(count)
        client.finish(*messages)
    return messages


def pairs(messages: list[Message]) -> list[tuple[bytes, dict[str, bytes]]]:
    return [(it.body, decode_headers(it.headers) if it.headers else {}) for it in messages]


def publish(nsqd: Nsqd) -> list[tuple[bytes, dict[str, bytes]]]:
    """Publish messages with and without headers by each command. Return them in their order."""
    client = connected(nsqd, "headers", "keys")
    client.send(hpub("t", encode_headers(ONE), b"one"), pub("t", b"plain"), hpub("t", NONE, b"none"))
    client.send(hmpub("t", [(encode_headers({"n": b"1"}), b"m1"), (NONE, b"m2"), (encode_headers(ONE), b"m3")]))
    client.send(hpub("t", encode_headers({"k": b""}), b"keyed").replace(b"HPUB t\n", b"HPUB t key-1\n"))
    client.send(hpub("t", encode_headers({"k": b""}), b"keyed").replace(b"HPUB t\n", b"HPUB t key-1\n"))
    for _ in range(6):
        assert client.response() == b"OK"
    return [
        (b"one", ONE), (b"plain", {}), (b"none", {}), (b"m1", {"n": b"1"}), (b"m2", {}), (b"m3", ONE), (b"keyed", {"k": b""}),
    ]  # fmt: skip


@pytest.mark.parametrize("kill", [False, True])
def test_they_come_to_whoever_asks_for_them_also_after_kill_9(nsqd: Nsqd, kill: bool) -> None:
    expected = publish(nsqd)
    if kill:
        nsqd.kill()
        nsqd.start()
    assert pairs(consumed(nsqd, len(expected))) == expected
    old = consumed(nsqd, len(expected), "old", headers=False)
    assert pairs(old) == [(body, {}) for body, _ in expected]


def test_without_the_grant_the_commands_are_unknown(nsqd: Nsqd) -> None:
    for word in (b"HPUB", b"HDPUB", b"HMPUB"):
        with connected(nsqd, "keys") as client:
            client.send(word + b" t\n")
            assert client.error() == b"E_INVALID invalid command " + word


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\0", b"E_BAD_MESSAGE PUB no length of headers"),
        (b"\0\x06\1a\0\0x", b"E_BAD_MESSAGE PUB headers end too early"),
        (b"\x10\x01" + bytes(5000), b"E_BAD_MESSAGE PUB headers too big 4097 > 4096"),
        (b"\0\4\1A\0\0body", b"E_BAD_MESSAGE PUB invalid header name b'A'"),
        (b"\0\4\1a\0\0", b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (NONE + bytes(2000), b"E_BAD_MESSAGE PUB message too big 2000 > 1000"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_published(start_nsqd: StartNsqd, content: bytes, error: bytes) -> None:
    nsqd = start_nsqd("max-msg-size=1000")
    for pieces in (1, 3):
        client = connected(nsqd, "headers")
        command = hpub("t", b"", content)
        for at in range(0, len(command), len(command) // pieces + 1):
            client.send(command[at : at + len(command) // pieces + 1])
        assert client.error() == error
    client = connected(nsqd, "headers")
    client.send(hmpub("t", [(encode_headers(ONE), b"good"), (b"", content)]))
    assert client.error() == error.replace(b"PUB", b"MPUB", 1)
    assert nsqd.topic("t")["message_count"] == 0


def test_they_stay_through_delay_requeue_and_burial(nsqd: Nsqd) -> None:
    client = connected(nsqd, "headers", "bury")
    client.send(hdpub("t", 100, encode_headers(ONE), b"later"))
    assert client.response() == b"OK"
    client.send(sub("t", "new"), rdy(1))
    assert client.response() == b"OK"
    message = client.message()
    client.send(req(message.id, 50))
    again = client.message()
    assert (again.attempts, again.body, decode_headers(again.headers)) == (2, b"later", ONE)
    client.send(b"BURY %b bad\n" % again.id)
    assert eventually(lambda: nsqd.channel("t", "new").get("buried_count") == 1)
    (line,) = lines(nsqd.http("GET", "/channel/buried?topic=t&channel=new").body)
    assert line["headers"] == {"traceparent": TRACE, "who": {"base64": "/wByYXc="}}
    nsqd.http("POST", "/channel/kick?topic=t&channel=new")
    assert decode_headers(client.message().headers) == ONE


def lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


def hmpub_body(*messages: tuple[dict[str, bytes], bytes]) -> bytes:
    return hmpub("t", [(encode_headers(headers), body) for headers, body in messages]).partition(b"\n")[2][4:]


def test_a_batch_over_http_may_have_different_headers(nsqd: Nsqd) -> None:
    body = hmpub_body(({"n": b"1"}, b"one"), ({}, b"two"), (ONE, b"three"))
    for _ in range(2):
        assert nsqd.http("POST", "/hmpub?topic=t&key=k-1", body).status == 200
    assert nsqd.http("POST", "/hmpub?topic=t", hmpub_body(({}, b"plain"))).status == 200
    expected = [(b"one", {"n": b"1"}), (b"two", {}), (b"three", ONE), (b"plain", {})]
    assert pairs(consumed(nsqd, 4)) == expected


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 413, "BAD_BODY"),
        (b"\0\0\0\1", 413, "BAD_MESSAGE"),
        (hmpub_body(({"a": b"1"}, b"body"))[:-1], 413, "BAD_MESSAGE"),
        (hmpub_body(({}, b"x" * 1001)), 413, "BAD_MESSAGE"),
        (b"\0\0\0\1\0\0\0\6\0\4\1A\0\0", 413, "BAD_MESSAGE"),
        (b"x" * 5001, 413, "BODY_TOO_BIG"),
    ],
)
def test_a_batch_over_http_that_is_wrong(start_nsqd: StartNsqd, body: bytes, status: int, message: str) -> None:
    nsqd = start_nsqd("max-msg-size=1000", "max-body-size=5000")
    answer = nsqd.http("POST", "/hmpub?topic=t", body)
    assert (answer.status, answer.json["message"]) == (status, message)
    assert not (nsqd.topic("t") or {}).get("message_count")


def test_headers_take_room_in_an_ephemeral_topic(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("mem-queue-bytes=10000")
    long = {"long": bytes(1000)}
    with connected(nsqd, "headers") as client:
        client.send(hmpub("e#ephemeral", [(encode_headers(long), b"x")] * 100))
        assert client.response() == b"OK"
    topic = nsqd.topic("e#ephemeral")
    assert topic["message_count"] == 100
    assert 5 < topic["depth"] < 10
    with connected(nsqd, "headers") as client:
        client.subscribe("e#ephemeral", "c#ephemeral", ready=100)
        assert pairs(client.messages(topic["depth"])) == [(b"x", long)] * topic["depth"]


def test_a_message_may_say_how_long_it_may_wait(nsqd: Nsqd) -> None:
    nsqd.http("POST", "/pub?topic=t", b"short", headers={"Nsq-Header-nsq-ttl": "1"})
    nsqd.http("POST", "/pub?topic=t", b"long", headers={"Nsq-Header-nsq-ttl": "600000"})
    nsqd.kill()
    nsqd.start()  # which takes more than a millisecond
    assert [it.body for it in consumed(nsqd, 1, "old", headers=False)] == [b"long"]
    assert eventually(lambda: nsqd.channel("t", "old").get("policy_counts") == {"ttl, dropped": 1})


def test_http_requests_bring_them_and_history_shows_them(nsqd: Nsqd) -> None:
    headers = {
        "Traceparent": TRACE, "Nsq-Header-Who": "ana", "ce-type": "order", "Content-Type": "application/json", "X-Other": "x",
    }  # fmt: skip
    expected = {"traceparent": TRACE, "who": "ana", "ce-type": "order", "content-type": "application/json"}
    assert nsqd.http("POST", "/pub?topic=t", b"one", headers=headers).status == 200
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert nsqd.http("POST", "/pub?topic=t", b"two", headers=form).status == 200
    assert nsqd.http("POST", "/mpub?topic=t", b"three\nfour", headers=headers).status == 200
    bad = nsqd.http("POST", "/pub?topic=t", b"bad", headers={"Nsq-Header-": "x"})
    assert (bad.status, bad.json["message"]) == (400, "INVALID_HEADERS")
    for path in ("/pub", "/mpub"):
        bad = nsqd.http("POST", f"{path}?topic=t", b"bad", headers={"Nsq-Header-Nsq-Group": "x" * 129})
        assert bad.status == 400
        assert bad.json["reason"] == f"invalid group '{'x' * 39}...: 129 bytes, expected 1 to 128"
    of_batch = {name: value for name, value in expected.items() if name != "content-type"}
    raw = {name: value.encode() for name, value in expected.items()}
    raw_of_batch = {name: value.encode() for name, value in of_batch.items()}
    assert pairs(consumed(nsqd, 4)) == [(b"one", raw), (b"two", {}), (b"three", raw_of_batch), (b"four", raw_of_batch)]
    assert eventually(lambda: len(lines(nsqd.http("GET", "/topic/read?topic=t&from=0").body)) > 4)  # what is synced
    shown = lines(nsqd.http("GET", "/topic/read?topic=t&from=0").body)
    assert [(it["body"], it.get("headers")) for it in shown if "body" in it] == [
        ("one", expected), ("two", None), ("three", of_batch), ("four", of_batch),
    ]  # fmt: skip
