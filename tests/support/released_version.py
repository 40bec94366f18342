"""What nsqd 0.1.0 puts into its data path: something of everything that a message can be.

`fill` and `check` do their work with an nsqd of that version and with any later one, so that tests see both an upgrade
and a way back.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from nsqcommon.wire.commands import dpub, hdpub, hmpub, hpub, mpub, pub
from nsqcommon.wire.extensions import bury
from nsqcommon.wire.headers import NONE, encode_headers
from nsqcommon.wire.message import Message
from tests.support.client import Client
from tests.support.earlier_version import CENTURY_MS, drained
from tests.support.process import Nsqd, eventually

OPTIONS: Final = ("max-bytes-per-file=1000", "max-req-timeout=876600h", "idempotence-window=876600h")
EXTENSIONS: Final = ("keys", "headers", "bury")
TRACED: Final = encode_headers({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
SHORT_LIVED: Final = encode_headers({"nsq-ttl": "1"})
LONG_LIVED: Final = encode_headers({"nsq-ttl": str(CENTURY_MS)})
ORDERS: Final = {b"%d" % number for number in range(40)}


def fill(nsqd: Nsqd) -> None:
    """Leave something of everything that 0.1.0 can keep. The caller ends nsqd, in whichever way."""
    for topic, channels in {"orders": ("work", "held"), "prices": ("c",), "jobs": ("c",), "unread": ()}.items():
        nsqd.post(f"/topic/create?topic={topic}")
        for channel in channels:
            nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    nsqd.post("/channel/pause?topic=orders&channel=held")
    with _connected(nsqd) as client:
        _publish_orders(client)
        _publish_with_ttl(client)
        _defer(nsqd, client)
        assert client.ask(hpub("unread", TRACED, b"one")) == b"OK"
    _take_some(nsqd)


def _publish_orders(client: Client) -> None:
    keyed = [_keyed(pub("orders", b"%d" % number), f"order-{number}") for number in range(10)]
    client.send(*keyed)  # at once, so that they share a record
    assert [client.response() for _ in keyed] == [b"OK"] * 10
    assert client.ask(_keyed(pub("orders", b"0 once more"), "order-0")) == b"OK"  # a repeat, which is not stored
    assert client.ask(_keyed(mpub("orders", [b"%d" % number for number in range(10, 20)]), "many")) == b"OK"
    for number in range(20, 30):
        assert client.ask(hpub("orders", TRACED, b"%d" % number)) == b"OK"
    batch = [(TRACED if number % 2 else NONE, b"%d" % number) for number in range(30, 40)]
    assert client.ask(hmpub("orders", batch)) == b"OK"


def _publish_with_ttl(client: Client) -> None:
    for headers, body in ((SHORT_LIVED, b"short-lived"), (LONG_LIVED, b"long-lived")):
        assert client.ask(hpub("prices", headers, body)) == b"OK"
    client.publish("prices", b"plain")


def _defer(nsqd: Nsqd, client: Client) -> None:
    client.defer("jobs", CENTURY_MS, b"plain")
    assert client.ask(hdpub("jobs", CENTURY_MS, TRACED, b"traced")) == b"OK"
    for key in ("kept", "cancelled"):
        assert client.ask(_keyed(dpub("jobs", CENTURY_MS, key.encode()), key)) == b"OK"
    answer = nsqd.http("POST", "/message/cancel?topic=jobs&key=cancelled").json
    assert answer["cancelled"] == 1, answer


def _take_some(nsqd: Nsqd) -> None:
    """Of the 40 orders finish 10, requeue 2 at once and 3 for a century, bury 4, kick one of these, leave 5 in flight."""
    consumer = _connected(nsqd)
    consumer.subscribe("orders", "work", ready=24)
    taken = consumer.messages(24)
    consumer.send(b"RDY 0\n")
    consumer.in_step()
    consumer.finish(*taken[:10])
    for message in taken[10:12]:
        consumer.requeue(message)
    for message in taken[12:15]:
        consumer.requeue(message, CENTURY_MS)
    consumer.send(*(bury(message.id, "no such customer") for message in taken[15:19]))
    consumer.in_step()
    eventually(lambda: _counts(nsqd, "orders", "work") == (3, 4))
    nsqd.post("/channel/kick?topic=orders&channel=work&limit=1")
    eventually(lambda: _counts(nsqd, "orders", "work") == (3, 3))


def check(nsqd: Nsqd) -> None:
    """Take all that `fill` has left, and raise AssertionError unless all of it is there."""
    assert _counts(nsqd, "orders", "work") == (3, 3)
    work = _drained(nsqd, "orders", "work")
    assert work.keys() <= ORDERS
    assert Counter(it.attempts for it in work.values()) == {1: 16 + 1, 2: 2 + 5}  # what is kicked counts anew
    assert {it["reason"] for it in _lines(nsqd, "/channel/buried?topic=orders&channel=work")} == {"no such customer"}
    nsqd.post("/channel/unpause?topic=orders&channel=held")
    held = _drained(nsqd, "orders", "held")
    assert held.keys() == ORDERS
    assert {int(body) for body, it in held.items() if it.headers == TRACED} == {*range(20, 30), *range(31, 40, 2)}
    assert _drained(nsqd, "prices").keys() == {b"long-lived", b"plain"}
    _check_deferred(nsqd)
    _check_keys(nsqd)
    nsqd.post("/channel/create?topic=unread&channel=c")
    assert [(body, it.headers) for body, it in _drained(nsqd, "unread").items()] == [(b"one", TRACED)]
    assert nsqd.http("GET", "/ping").body == b"OK"


def _check_deferred(nsqd: Nsqd) -> None:
    found = {it["body"]: it.get("headers") for it in _lines(nsqd, "/channel/deferred?topic=jobs&channel=c")}
    assert found.keys() == {"plain", "traced", "kept"}
    assert found["traced"] == {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    assert nsqd.http("POST", "/message/cancel?topic=jobs&key=kept").json["cancelled"] == 1
    for it in _lines(nsqd, "/channel/deferred?topic=jobs&channel=c"):
        nsqd.post(f"/message/due?topic=jobs&channel=c&id={it['id']}&defer=0")
    assert _drained(nsqd, "jobs").keys() == {b"plain", b"traced"}


def _check_keys(nsqd: Nsqd) -> None:
    """A publish that was made before the upgrade, and is sent again after it, is still a repeat."""
    before = nsqd.topic("orders")["message_count"]
    with _connected(nsqd) as client:
        assert client.ask(_keyed(pub("orders", b"9"), "order-9")) == b"OK"
    assert nsqd.topic("orders")["message_count"] == before


def _drained(nsqd: Nsqd, topic: str, channel: str = "c") -> dict[bytes, Message]:
    return drained(nsqd, topic, channel, extensions=EXTENSIONS)


def _connected(nsqd: Nsqd) -> Client:
    client = nsqd.connect()
    assert client.identify(feature_negotiation=True, extensions=EXTENSIONS)["extensions"] == [*EXTENSIONS]
    return client


def _keyed(command: bytes, key: str) -> bytes:
    return command.replace(b"\n", f" {key}\n".encode(), 1)


def _counts(nsqd: Nsqd, topic: str, channel: str) -> tuple[int, int]:
    """Return how many messages of a channel are deferred, and how many are buried."""
    found = nsqd.channel(topic, channel)
    return found["deferred_count"], found.get("buried_count", 0)


def _lines(nsqd: Nsqd, path: str) -> list[Any]:
    return [json.loads(line) for line in nsqd.http("GET", path).body.splitlines()]
