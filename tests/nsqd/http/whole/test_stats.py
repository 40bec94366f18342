"""/stats as JSON and as text, to the byte, from made-up snapshots."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from nsqd.broker.consumer import Consumer
from nsqd.broker.in_flight import Delivery
from nsqd.broker.stats_records import (
    NO_LATENCY,
    BrokerSnapshot,
    ChannelSnapshot,
    ClientSnapshot,
    LatencySnapshot,
    TopicSnapshot,
)
from nsqd.stats.json import stats_json
from nsqd.stats.memory import MemorySnapshot, memory_now
from nsqd.stats.text import stats_text
from tests.nsqd.http.conftest import Nsqd

CLIENT = ClientSnapshot(
    client_id="127.0.0.1",
    hostname="127.0.0.1",
    remote_address="127.0.0.1:44080",
    state=3,
    ready_count=1,
    in_flight_count=1,
    message_count=1,
    connect_ts=1795215772,
)
PRODUCER = replace(CLIENT, user_agent="go-nsq/1.1", pub_counts=(("t1", 7),), state=0, ready_count=0)
CHANNEL = ChannelSnapshot(
    channel_name="c1",
    depth=0,
    backend_depth=0,
    in_flight_count=1,
    deferred_count=0,
    message_count=1,
    global_msg_count=1,
    requeue_count=0,
    timeout_count=0,
    client_count=1,
    clients=[CLIENT],
    paused=False,
    e2e_processing_latency=NO_LATENCY,
)
TOPIC = TopicSnapshot(
    topic_name="t1",
    channels=[CHANNEL],
    depth=2,
    backend_depth=1,
    message_count=3,
    message_bytes=600,
    paused=True,
    e2e_processing_latency=LatencySnapshot(count=3, percentiles=((0.99, 2_500_000.0), (0.5, 900.0))),
)
SNAPSHOT = BrokerSnapshot(health="OK", start_time=1795215700, topics=[TOPIC], producers=[PRODUCER])
MEMORY = MemorySnapshot(heap_objects=5, heap_in_use_bytes=4096, gc_total_runs=2)

CLIENT_JSON = (
    b'{"client_id":"127.0.0.1","hostname":"127.0.0.1","version":"V2","remote_address":"127.0.0.1:44080","state":3,'
    b'"ready_count":1,"in_flight_count":1,"message_count":1,"finish_count":0,"requeue_count":0,'
    b'"connect_ts":1795215772,"sample_rate":0,"deflate":false,"snappy":false,"user_agent":"",'
    b'"topology_zone":"","topology_region":"","tls":false,"tls_cipher_suite":"","tls_version":"",'
    b'"tls_negotiated_protocol":"","tls_negotiated_protocol_is_mutual":false}'
)
# Written by a real Go nsqd.
CHANNEL_JSON = (
    b'{"channel_name":"c1","depth":0,"backend_depth":0,"in_flight_count":1,"deferred_count":0,"message_count":1,'
    b'"global_msg_count":1,"requeue_count":0,"timeout_count":0,"client_count":1,"clients":[' + CLIENT_JSON + b"],"
    b'"paused":false,"e2e_processing_latency":{"count":0,"percentiles":null}}'
)


def as_json(snapshot: BrokerSnapshot, memory: MemorySnapshot | None = None) -> bytes:
    return b"".join(stats_json(snapshot, memory, version="1.3.0"))


def test_json() -> None:
    producer = CLIENT_JSON.replace(b'"state":3,"ready_count":1', b'"state":0,"ready_count":0')
    producer = producer.replace(b'"user_agent":""', b'"user_agent":"go-nsq/1.1"')
    producer = producer.replace(b'"tls":', b'"pub_counts":[{"topic":"t1","count":7}],"tls":')
    assert as_json(SNAPSHOT, MEMORY) == (
        b'{"version":"1.3.0","health":"OK","start_time":1795215700,"topics":[{"topic_name":"t1","channels":['
        + CHANNEL_JSON
        + b'],"depth":2,"backend_depth":1,"message_count":3,"message_bytes":600,"paused":true,'
        b'"e2e_processing_latency":{"count":3,"percentiles":[{"quantile":0.99,"value":2500000},'
        b'{"quantile":0.5,"value":900}]}}],"memory":{"heap_objects":5,"heap_idle_bytes":0,"heap_in_use_bytes":4096,'
        b'"heap_released_bytes":0,"gc_pause_usec_100":0,"gc_pause_usec_99":0,"gc_pause_usec_95":0,"next_gc_bytes":0,'
        b'"gc_total_runs":2},"producers":[' + producer + b"]}"
    )


def test_null_is_not_empty() -> None:
    empty = BrokerSnapshot(health="OK", start_time=1, topics=[], producers=None)
    assert as_json(empty) == b'{"version":"1.3.0","health":"OK","start_time":1,"topics":[],"producers":null}'
    unknown = replace(empty, topics=None)
    assert b'"topics":null' in as_json(unknown)
    no_channels = replace(empty, topics=[replace(TOPIC, channels=[])])
    assert b'"channels":[]' in as_json(no_channels)
    excluded = replace(empty, topics=[replace(TOPIC, channels=[replace(CHANNEL, clients=None)])])
    assert b'"client_count":1,"clients":null' in as_json(excluded)


def test_fields_that_are_only_there_when_set() -> None:
    client = replace(CLIENT, authed=True, auth_identity="me", auth_identity_url="http://me")
    channel = replace(CHANNEL, clients=[client], global_msg_count=0, zone_local_msg_count=2, region_local_msg_count=3)
    written = as_json(replace(SNAPSHOT, topics=[replace(TOPIC, channels=[channel])]))
    assert b'"message_count":1,"zone_local_msg_count":2,"region_local_msg_count":3,"requeue_count"' in written
    assert b'"user_agent":"","authed":true,"auth_identity":"me","auth_identity_url":"http://me","topology' in written


def test_a_client_that_has_touched_a_message_ends_with_its_touches() -> None:
    client = replace(CLIENT, touch_count=3, last_touch_at=1_795_215_772 * 10**9)
    written = as_json(replace(SNAPSHOT, topics=[replace(TOPIC, channels=[replace(CHANNEL, clients=[client])])]))
    own = b'"touch_count":3,"last_touch_at":1795215772000000000'
    assert b'"tls_negotiated_protocol_is_mutual":false,' + own + b"}" in written
    assert written.replace(b"," + own, b"") == as_json(SNAPSHOT)


def test_each_topic_on_disk_has_its_ack() -> None:
    """A topic in memory has none: the store never gets its messages, so its publishers don't wait for it."""
    snapshot = replace(SNAPSHOT, topics=[TOPIC, replace(TOPIC, topic_name="t2#ephemeral")])
    written = b"".join(stats_json(snapshot, None, version="1.3.0", ack_of=lambda topic: "remote"))
    assert [it.get("ack") for it in json.loads(written)["topics"]] == ["remote", None]


def test_ages_are_told_to_who_asks_for_them(nsqd: Nsqd) -> None:
    channel = nsqd.broker.topic("t").channel("c")
    consumer = Consumer(send=lambda pieces: None, close=lambda: None, describe=lambda: CLIENT, msg_timeout=60.0)
    channel.join(consumer)
    channel.in_flight.add((b"0" * 16,), Delivery(consumer, 0, 1, 0, 1, time.monotonic() - 2.0, 1e9, 0))
    consumer.in_flight = 1
    assert b"oldest_in_flight_ms" not in nsqd.get("/stats?format=json").body
    (client,) = json.loads(nsqd.get("/stats?format=json&ages=true").body)["topics"][0]["channels"][0]["clients"]
    assert 2000 <= client["oldest_in_flight_ms"] < 600_000


def test_the_time_of_the_oldest_waiting_message_is_told_to_who_asks_for_it(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")

    def channel(arguments: str = "") -> Any:
        return json.loads(nsqd.get(f"/stats?format=json{arguments}").body)["topics"][0]["channels"][0]

    assert "oldest_timestamp" not in channel("&ages=true")  # nothing waits
    before = nsqd.broker.turn.timestamp
    nsqd.post("/pub?topic=t", b"old")
    nsqd.post("/pub?topic=t", b"new")
    told = channel("&ages=true&include_clients=false")["oldest_timestamp"]
    assert told == nsqd.broker.topic("t").channel("c").ledger.oldest_timestamp()
    assert told >= before
    assert "oldest_timestamp" not in channel()


def shown_as_text(snapshot: BrokerSnapshot, memory: MemorySnapshot | None, *, version: str, timestamp: int) -> str:
    return "\n".join([*stats_text(snapshot, memory, version=version, timestamp=timestamp), ""])


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        text = shown_as_text(SNAPSHOT, MEMORY, version="nsqd v1.3.0 (built w/x)", timestamp=1795215837_500000000)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert text == (
        "nsqd v1.3.0 (built w/x)\n"
        "start_time 2026-11-20T23:01:40Z\n"
        "uptime 2m17.5s\n"
        "\n"
        "Health: OK\n"
        "\n"
        "Memory:\n"
        "   heap_objects             \t5\n"
        "   heap_idle_bytes          \t0\n"
        "   heap_in_use_bytes        \t4096\n"
        "   heap_released_bytes      \t0\n"
        "   gc_pause_usec_100        \t0\n"
        "   gc_pause_usec_99         \t0\n"
        "   gc_pause_usec_95         \t0\n"
        "   next_gc_bytes            \t0\n"
        "   gc_total_runs            \t2\n"
        "\n"
        "Topics:\n"
        "*P [t1             ] depth: 2     be-depth: 1     msgs: 3        e2e%: 2.5ms, 900.0ns\n"
        "      [c1                       ] depth: 0     be-depth: 0     inflt: 1    def: 0    re-q: 0     "
        "timeout: 0     msgs: 1        e2e%: \n"
        "        [V2 127.0.0.1:44080      ] state: 3 inflt: 1    rdy: 1    fin: 0        re-q: 0        "
        "msgs: 1        connected: 1m5s\n"
        "\n"
        "Producers:\n"
        "   [V2 127.0.0.1:44080 go-nsq/1.1] msgs: 7        topics: t1=7 connected: 1m5s\n"
    )


def test_text_of_nothing() -> None:
    nothing = BrokerSnapshot(health="NOK - x", start_time=1, topics=None, producers=None)
    lines = shown_as_text(nothing, None, version="v", timestamp=10**9).split("\n")
    assert lines[2:] == ["uptime 0s", "", "Health: NOK - x", "", "Topics: None", "", "Producers: None", ""]


def test_topics_are_set_apart_and_pauses_shown() -> None:
    channel = replace(CHANNEL, paused=True, clients=None)
    second = replace(TOPIC, topic_name="t2", paused=False, channels=[channel])
    text = shown_as_text(replace(SNAPSHOT, topics=[TOPIC, second]), None, version="v", timestamp=10**19)
    assert "\n\n   [t2             ] depth: " in text
    assert "\n   *P [c1   " in text


def test_a_limit_is_shown_with_how_long_it_has_been_reached() -> None:
    since = 1_795_215_700 * 10**9
    for reached, shown in ((None, ""), (since, ", reached for 2m5s")):
        channel = replace(CHANNEL, max_in_flight=3, in_flight_full_since=reached)
        snapshot = replace(SNAPSHOT, topics=[replace(TOPIC, channels=[channel])])
        text = shown_as_text(snapshot, None, version="v", timestamp=since + 125 * 10**9)
        assert f"e2e%:  max-inflt: 3{shown}\n" in text
        (topic,) = json.loads(as_json(snapshot))["topics"]
        (found,) = topic["channels"]
        assert (found["max_in_flight"], found.get("in_flight_full_since")) == (3, reached)
    assert b"in_flight_full_since" not in as_json(SNAPSHOT)
    assert b"max_in_flight" not in as_json(SNAPSHOT)


def test_client_on_a_unix_socket() -> None:
    client = replace(CLIENT, remote_address="@", hostname="here", user_agent="")
    text = shown_as_text(replace(SNAPSHOT, producers=[client]), None, version="v", timestamp=10**19)
    assert "   [V2 here:                ] state: 3" in text


@pytest.mark.parametrize(("value", "shown"), [
    (0.0, "0.0ns"), (1000.0, "1000.0ns"), (1001.0, "1.0us"), (1e6, "1000.0us"), (1.5e9, "1.5s"), (1e9, "1000.0ms"),
])  # fmt: skip
def test_units_of_latency(value: float, shown: str) -> None:
    topic = replace(TOPIC, e2e_processing_latency=LatencySnapshot(count=1, percentiles=((1.0, value),)))
    text = shown_as_text(replace(SNAPSHOT, topics=[topic]), None, version="v", timestamp=10**19)
    assert f"e2e%: {shown}\n" in text


def test_memory_of_this_process() -> None:
    memory = memory_now()
    assert memory.heap_objects > 0
    assert memory.heap_in_use_bytes > 0


def test_filters_of_the_real_broker(nsqd: Nsqd) -> None:
    def topics(query: str) -> bytes:
        body = nsqd.get(f"/stats?format=json&include_mem=false{query}").body
        return body[body.index(b'"topics":') : body.index(b',"producers"')]

    assert topics("") == b'"topics":[]'
    assert topics("&topic=unknown") == b'"topics":null'
    nsqd.broker.topic("b")
    nsqd.broker.topic("a").channel("c")
    assert topics("").index(b'"a"') < topics("").index(b'"b"')
    assert b'"topic_name":"b","channels":[],' in topics("&topic=b")
    assert topics("&channel=x") == b'"topics":[]'
    assert b'"b"' not in topics("&channel=c")
