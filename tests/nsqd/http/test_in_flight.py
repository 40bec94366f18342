"""The list of a channel's messages in flight, over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from nsqcommon.wire.headers import encode_headers
from nsqd.broker.consumer import Consumer
from nsqd.broker.stats_records import ClientSnapshot
from tests.nsqd.fake_broker import NOW, START
from tests.nsqd.http.conftest import Nsqd, code
from tests.support.asgi import Answer, ask_in_loop

AT = "topic=t&channel=c"
SECOND = 10**9
T0 = START * SECOND


def publish(nsqd: Nsqd, *texts: str, topic: str = "t", headers: dict[str, bytes] | None = None, key: str = "") -> None:
    payload, offsets = b"", [0]
    for text in texts:
        payload += len(text).to_bytes(4, "big") + text.encode()
        offsets.append(len(payload))
    encoded = encode_headers(headers) * len(texts) if headers else b""
    nsqd.broker.topic(topic).publish(payload, offsets, headers=encoded, key=key.encode())
    nsqd.turn.finish()


def joined(nsqd: Nsqd, name: str, ready: int, at: str = "t/c", address: str = "10.0.0.1:5000") -> Consumer:
    def describe() -> ClientSnapshot:
        return ClientSnapshot(
            client_id=name, hostname=f"{name}.lan", remote_address=address, state=3, connect_ts=START, user_agent="go/1"
        )

    consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=describe, msg_timeout=60.0)
    consumer.ready_count = ready
    topic, channel = at.split("/")
    nsqd.broker.topic(topic).channel(channel).join(consumer)
    deliver(nsqd, consumer, at)
    return consumer


def deliver(nsqd: Nsqd, consumer: Consumer, at: str = "t/c") -> None:
    consumer.unsent_bytes = 0
    topic, channel = at.split("/")
    nsqd.broker.topic(topic).channel(channel).schedule_delivery()
    nsqd.turn.finish()


def pass_time(nsqd: Nsqd, seconds: float) -> None:
    nsqd.broker.turn.now += seconds
    nsqd.broker.turn.timestamp += int(seconds * SECOND)


def listed(nsqd: Nsqd, query: str = "", at: str = AT) -> list[Any]:
    answer = nsqd.get(f"/channel/inflight?{at}{query}")
    assert answer.status == 200, answer.body
    return [json.loads(line) for line in answer.body.splitlines()]


def refused(nsqd: Nsqd, query: str) -> tuple[int, str]:
    answer = nsqd.get(f"/channel/inflight?{query}")
    return answer.status, json.loads(answer.body)["message"]


@pytest.fixture
def held(nsqd: Nsqd) -> Nsqd:
    """Return an nsqd whose consumer ana has two messages, and ben one that came three seconds later."""
    nsqd.broker.topic("t").channel("c")
    publish(nsqd, "a", "bb", headers={"nsq-group": b"acme", "raw": b"\xff"})
    joined(nsqd, "ana", 2)
    pass_time(nsqd, 3.0)
    publish(nsqd, "ccc", key="order-3")
    joined(nsqd, "ben", 1, address="10.0.0.2:5000")
    return nsqd


def test_each_line_says_who_has_what_since_when_and_until_when(held: Nsqd) -> None:
    pass_time(held, 2.0)
    first, second, third = listed(held)
    assert (first.pop("in_flight_ms"), third["in_flight_ms"]) == (5000, 2000)
    run = first["after"].split(",")[0]
    assert first == {
        "id": first["id"],
        "sequence": 0,
        "attempts": 1,
        "since": T0,
        "deadline": T0 + 60 * SECOND,
        "timestamp": T0,
        "consumer": {
            "client_id": "ana",
            "hostname": "ana.lan",
            "remote_address": "10.0.0.1:5000",
            "user_agent": "go/1",
            "version": "V2",
        },
        "after": f"{run},{int(NOW * 1e6)},0",
        "size": 1,
        "group": "acme",
        "headers": {"nsq-group": "acme", "raw": {"base64": "/w=="}},
    }
    assert (second["sequence"], second["size"], int(second["id"], 16)) == (1, 2, int(first["id"], 16) + 1)
    assert (third["consumer"]["client_id"], third["size"], third["key"]) == ("ben", 3, "order-3")
    assert (third["since"], "headers" in third) == (T0 + 3 * SECOND, False)


def test_a_touch_moves_the_deadline_and_not_the_beginning(held: Nsqd) -> None:
    before = listed(held)
    channel = held.broker.topics["t"].channels["c"]
    pass_time(held, 50.0)
    channel.touch(channel.consumers[0], before[0]["id"].encode(), msg_timeout=60.0, now=held.broker.turn.now)
    pass_time(held, 1.0)
    after = listed(held)
    assert [it["since"] for it in after] == [it["since"] for it in before]
    assert [it.get("last_touch") for it in after] == [T0 + 53 * SECOND, None, None]
    assert after[0]["deadline"] == T0 + 113 * SECOND
    assert [it["after"] for it in after] == [it["after"] for it in before]


def test_pages_continue_after_a_line(held: Nsqd) -> None:
    first, *rest = listed(held)
    assert listed(held, "&limit=1") == [first]
    assert listed(held, f"&after={first['after']}") == rest
    assert listed(held, f"&after={rest[-1]['after']}") == []
    assert listed(held, "&limit=0") == []


def test_a_message_that_is_delivered_again_meanwhile_comes_later_and_the_others_still_once(held: Nsqd) -> None:
    first, second, third = listed(held)
    channel = held.broker.topics["t"].channels["c"]
    ana, _ = channel.consumers
    channel.requeue(ana, second["id"].encode(), 0, held.broker.turn.now)
    pass_time(held, 1.0)
    deliver(held, ana)
    again = listed(held, f"&after={first['after']}")
    assert [(it["sequence"], it["attempts"]) for it in again] == [(2, 1), (1, 2)]
    assert again[0]["after"] == third["after"]


@pytest.mark.parametrize("name", ["ben", "ben.lan", "10.0.0.2:5000"])
def test_those_of_one_consumer_are_found_by_each_of_its_names(held: Nsqd, name: str) -> None:
    assert [it["sequence"] for it in listed(held, f"&client={name}")] == [2]
    assert listed(held, "&client=be") == []
    assert len(listed(held, "&client=")) == 3


def test_a_message_outlives_the_connection_of_its_consumer(held: Nsqd) -> None:
    channel = held.broker.topics["t"].channels["c"]
    channel.leave(channel.consumers[0])
    assert [it["consumer"].get("gone") for it in listed(held)] == [True, True, None]
    assert len(listed(held, "&client=ana")) == 2


def test_a_lease_is_shown_with_its_holder(nsqd: Nsqd) -> None:
    nsqd.broker.topic("t").channel("c")
    publish(nsqd, "x")
    (taken,) = nsqd.post(f"/sub?{AT}&max=1&lease=90s").body.splitlines()
    message_id = json.loads(taken)["id"]
    pass_time(nsqd, 10.0)
    nsqd.post(f"/touch?{AT}&lease=90s", message_id.encode())
    (line,) = listed(nsqd)
    (client,) = json.loads(nsqd.get("/stats?format=json").body)["topics"][0]["channels"][0]["clients"]
    assert line["consumer"] == {name: client[name] for name in line["consumer"]}
    assert (line["id"], line["consumer"]["version"], line["consumer"]["client_id"] != "") == (message_id, "HTTP", True)
    assert (line["since"], line["last_touch"], line["deadline"]) == (T0, T0 + 10 * SECOND, T0 + 100 * SECOND)
    assert (client["touch_count"], client["last_touch_at"]) == (1, T0 + 10 * SECOND)
    assert listed(nsqd, f"&client={client['client_id']}") == [line]


def test_without_headers_nothing_is_read(held: Nsqd) -> None:
    lines = listed(held, "&headers=false")
    assert not any(it.keys() & {"size", "headers", "group", "key", "unread"} for it in lines)
    assert [it["timestamp"] for it in lines] == [T0, T0, T0 + 3 * SECOND]


def test_a_slow_disk_hides_no_consumer(held: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqd.http.in_flight._LONGEST_READING", 0.0)
    before = listed(held)
    held.store.logs["t"].batches.clear()
    lines = listed(held)
    assert [it.pop("unread") for it in lines] == ["reading from disk takes too long"] * 3
    of_message = ("size", "key", "group", "headers")
    assert lines == [{name: it[name] for name in it if name not in of_message} for it in before]


def test_a_summary_is_only_the_number(held: Nsqd) -> None:
    summary = json.loads(held.get(f"/channel/inflight?{AT}&summary=true").body)
    assert summary == {"count": 3, "log": None, "now": T0 + 3 * SECOND}


def test_messages_of_an_ephemeral_topic_have_no_sequence(nsqd: Nsqd) -> None:
    nsqd.broker.topic("e#ephemeral").channel("c")
    publish(nsqd, "xyz", topic="e#ephemeral")
    joined(nsqd, "ana", 1, "e#ephemeral/c")
    (line,) = listed(nsqd, at="topic=e%23ephemeral&channel=c")
    assert ("sequence" in line, line["size"]) == (False, 3)


def test_an_ephemeral_channel_and_a_paused_one_and_a_draining_node_list_theirs(nsqd: Nsqd) -> None:
    nsqd.broker.topic("t").channel("c#ephemeral")
    publish(nsqd, "xyz")
    joined(nsqd, "ana", 1, "t/c#ephemeral")
    nsqd.post("/channel/pause?topic=t&channel=c%23ephemeral")
    nsqd.broker.refusal = "draining"
    (line,) = listed(nsqd, at="topic=t&channel=c%23ephemeral")
    assert (line["sequence"], line["size"]) == (0, 3)


@pytest.mark.parametrize(("query", "status", "answer"), [
    ("", 400, "MISSING_ARG_TOPIC"),
    ("topic=t", 400, "MISSING_ARG_CHANNEL"),
    ("topic=none&channel=c", 404, "TOPIC_NOT_FOUND"),
    ("topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
    (f"{AT}&limit=10001", 400, "INVALID_ARG_LIMIT"),
    (f"{AT}&limit=x", 400, "INVALID_ARG_LIMIT"),
    (f"{AT}&after=5", 400, "INVALID_ARG_AFTER"),
    (f"{AT}&after=00000000,1,1", 409, "STARTED_ANEW"),
])  # fmt: skip
def test_what_is_refused(held: Nsqd, query: str, status: int, answer: str) -> None:
    assert refused(held, query) == (status, answer)


@pytest.mark.parametrize("topic", ["t", "e#ephemeral"])
def test_a_list_ends_when_its_channel_is_deleted_meanwhile(nsqd: Nsqd, topic: str) -> None:
    nsqd.broker.topic(topic).channel("c")
    publish(nsqd, *map(str, range(3)), topic=topic)
    joined(nsqd, "ana", 3, f"{topic}/c")

    async def list_while_it_goes() -> Answer | None:
        at = f"topic={quote(topic)}&channel=c"
        listing = asyncio.ensure_future(ask_in_loop(nsqd.app, "GET", f"/channel/inflight?{at}"))
        await asyncio.sleep(0)
        nsqd.broker.topic(topic).delete_channel("c")
        return await listing

    answer = asyncio.run(list_while_it_goes())
    assert answer is not None
    assert (answer.status, answer.body) == (200, b"")


def test_an_emptied_channel_has_none(held: Nsqd) -> None:
    held.post(f"/channel/empty?{AT}")
    assert listed(held) == []
    assert held.get("/channel/inflight?topic=none&channel=c").body == code("TOPIC_NOT_FOUND")
