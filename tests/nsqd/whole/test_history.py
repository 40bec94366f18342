"""History over HTTP and for channels, on a real nsqd: arguments, errors, and what a kill -9 must not change."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from nsqcommon.wire.history import MSGPACK, End, Gap, HistoryReader, LogRange, StoredBatch
from tests.support.brokers import StartNsqd
from tests.support.client import TIMEOUT, Disconnected
from tests.support.lengths import sized
from tests.support.process import Answer, Nsqd, eventually

PACKED = {"Accept": MSGPACK}


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    nsqd.connect().publish(topic, *bodies)
    synced(nsqd, topic)


def synced(nsqd: Nsqd, topic: str) -> Any:
    """Return what /topic/log says when everything that was published can be read."""
    count = nsqd.topic(topic)["message_count"]
    return eventually(lambda: (found := log_of(nsqd, topic))["next"] - found["first"] >= count and found)


def log_of(nsqd: Nsqd, topic: str, more: str = "") -> Any:
    answer = nsqd.http("GET", f"/topic/log?topic={topic}{more}")
    assert answer.status == 200, answer
    return answer.json


def lines(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


@dataclass
class Read:
    """A whole msgpack answer, decoded."""

    log_range: LogRange | None = None
    messages: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    next: int = -1


def read(nsqd: Nsqd, topic: str, more: str = "") -> Read:
    answer = nsqd.http("GET", f"/topic/read?topic={topic}{more}", headers=PACKED)
    assert (answer.status, answer.headers["content-type"]) == (200, MSGPACK), answer
    reader, found = HistoryReader(), Read()
    reader.receive(answer.body)
    for event in iter(reader.next_event, None):
        match event:
            case LogRange():
                found.log_range = event
            case StoredBatch():
                found.messages |= {s: (i, body) for s, i, body in event.messages()}
            case Gap():
                found.gaps.append(event)
            case End():
                found.next = event.next
    assert reader.complete
    return found


def until_waiting(nsqd: Nsqd, requests: int) -> None:
    """Wait until this many requests to /topic/log wait for more."""
    figure = b"\nnsqd_log_requests_waiting %d\n" % requests
    eventually(lambda: figure in nsqd.http("GET", "/metrics").body)


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["message"]


# /topic/log


def test_log_says_what_there_is(nsqd: Nsqd) -> None:
    before = time.time_ns()
    publish(nsqd, "log", b"a", b"b")
    publish(nsqd, "log", b"c")
    found = synced(nsqd, "log")
    assert found.keys() == {
        *("topic", "node", "log", "first", "next", "first_time", "last_time", "segments", "bytes"),
        *("retention_time", "retention_bytes"),
    }
    assert (found["topic"], found["first"], found["next"], found["segments"]) == ("log", 0, 3, 1)
    assert before <= found["first_time"] < found["last_time"] <= time.time_ns()
    assert found["bytes"] == 56 + 2 * 5 + 56 + 5
    assert len(found["node"]) == len(found["log"]) == 32


def test_log_tells_times_and_bytes_along_a_range(nsqd: Nsqd) -> None:
    for bodies in ((b"a", b"bb", b"ccc"), (b"d",), (b"e", b"f")):
        publish(nsqd, "points", *bodies)
    times = [line["timestamp"] for line in lines(nsqd.http("GET", "/topic/read?topic=points"))[:-1]]
    assert log_of(nsqd, "points", "&points=100")["points"] == [
        *([0, times[0], 0], [3, times[0], 56 + 18], [3, times[3], 74], [4, times[3], 74 + 61]),
        *([4, times[4], 135], [6, times[4], 135 + 66]),
    ]
    within = log_of(nsqd, "points", "&from=1&to=5&points=6")["points"]
    assert [within[0], within[-1]] == [[1, times[0], 0], [5, times[4], 135 + 33 - 24]]
    assert log_of(nsqd, "points", "&from=6&points=6")["points"] == []
    assert log_of(nsqd, "points", "&from=5&to=99&points=6")["points"] == [[5, times[4], 0], [6, times[4], 33]]


def test_log_of_a_topic_without_messages(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=empty")
    found = log_of(nsqd, "empty")
    assert (found["first"], found["next"], found["first_time"], found["last_time"]) == (0, 0, None, None)


def test_wait_holds_the_answer_until_more_is_synced(nsqd: Nsqd) -> None:
    publish(nsqd, "wait", b"a")
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(log_of(nsqd, "wait", "&wait=30s&next=1")))
    waiting.start()
    until_waiting(nsqd, 1)
    assert not answers
    nsqd.connect().publish("wait", b"b")
    waiting.join(TIMEOUT)
    assert answers[0]["next"] == 2


def test_who_leaves_as_soon_as_it_has_asked_is_not_waited_for(nsqd: Nsqd) -> None:
    publish(nsqd, "left", b"a")
    eventually(lambda: "topic=left" in nsqd.log)
    before, said = nsqd.descriptors, len(nsqd.log)
    for _ in range(50):  # some requests see the end before they wait, some while they wait
        with socket.create_connection(nsqd.http_address) as sock:
            sock.sendall(b"GET /topic/log?topic=left&wait=60s HTTP/1.1\r\nHost: x\r\n\r\n")
    eventually(lambda: nsqd.descriptors <= before)
    until_waiting(nsqd, 0)
    assert "ERROR" not in nsqd.log[said:]  # tests before this one may have caused errors


def test_wait_does_not_wait_for_what_is_there_already(nsqd: Nsqd) -> None:
    publish(nsqd, "there", b"a", b"b")
    began = time.monotonic()
    assert log_of(nsqd, "there", "&wait=60s&next=1")["next"] == 2
    assert log_of(nsqd, "there", "&wait=60s&next=99")["next"] == 2  # of an earlier topic of this name
    assert log_of(nsqd, "there", "&wait=0")["next"] == 2
    assert time.monotonic() - began < 20


def test_wait_ends_with_its_time(nsqd: Nsqd) -> None:
    publish(nsqd, "patience", b"a")
    began = time.monotonic()
    assert log_of(nsqd, "patience", "&wait=300ms")["next"] == 1
    assert time.monotonic() - began >= 0.29


def test_wait_ends_with_the_topic(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=waited")
    answers: list[Answer] = []
    waiting = threading.Thread(
        target=lambda: answers.append(nsqd.http("GET", "/topic/log?topic=waited&wait=30s", timeout=25))
    )
    waiting.start()
    until_waiting(nsqd, 1)
    nsqd.post("/topic/delete?topic=waited")
    waiting.join(TIMEOUT)
    assert refusal(answers[0]) == (404, "TOPIC_NOT_FOUND")


def test_wait_ends_when_nsqd_stops(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.post("/topic/create?topic=t")
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(log_of(nsqd, "t", "&wait=60s")))
    waiting.start()
    until_waiting(nsqd, 1)
    assert nsqd.stop() == 0
    waiting.join(TIMEOUT)
    assert answers[0]["next"] == 0


def test_a_drain_closes_the_log_for_who_asks_and_the_next_start_opens_it(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("drain-stay=60s")
    publish(nsqd, "drained", b"a", b"b")
    before = synced(nsqd, "drained")
    assert "closed" not in before
    answers: dict[str, Any] = {}

    def wait(known: str, seconds: int) -> None:
        answers[known] = log_of(nsqd, "drained", f"&wait={seconds}s&next=2{known}")

    waits = (("&closed=false", 60), ("&closed=true", 4), ("", 4))
    waiting = [threading.Thread(target=wait, args=arguments) for arguments in waits]
    began = time.monotonic()
    for thread in waiting:
        thread.start()
    until_waiting(nsqd, 3)
    nsqd.post("/drain?stay=30s")
    waiting[0].join(TIMEOUT)
    assert not waiting[0].is_alive(), "who follows the log hears of it at once"
    for thread in waiting[1:]:
        thread.join(TIMEOUT)
    assert time.monotonic() - began >= 3.9, "and who knows it, or never heard of it, is not made to ask for ever"
    assert [answer["closed"] for answer in answers.values()] == [True] * 3
    assert nsqd.http("GET", "/topic/read?topic=drained").status == 200
    assert nsqd.http("POST", "/drain?stay=soon").json == {"message": "INVALID_ARG_STAY"}
    nsqd.post("/drain?stay=0s")
    assert nsqd.wait() == 0
    nsqd.start()
    publish(nsqd, "drained", b"c")
    after = eventually(lambda: (found := log_of(nsqd, "drained"))["next"] == 3 and found)
    assert (after["log"], after["next"], "closed" in after) == (before["log"], 3, False)


def test_who_waits_and_leaves_costs_nothing(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=left")
    until_waiting(nsqd, 0)
    before = nsqd.descriptors
    with ExitStack() as connections:
        for _ in range(20):
            sock = connections.enter_context(socket.create_connection(nsqd.http_address))
            sock.sendall(b"GET /topic/log?topic=left&wait=60s HTTP/1.1\r\nHost: x\r\n\r\n")
        until_waiting(nsqd, 20)
    until_waiting(nsqd, 0)
    eventually(lambda: nsqd.descriptors <= before + 1)


# /topic/read


@pytest.fixture(scope="module")
def filled(nsqd: Nsqd) -> Nsqd:
    """Fill topic `filled`: 0 to 9 in batches of one, then 10 to 19 in one batch."""
    client = nsqd.connect()
    for n in range(10):
        client.publish("filled", b"m%d" % n)
    client.publish("filled", *(b"m%d" % n for n in range(10, 20)))
    synced(nsqd, "filled")
    return nsqd


@pytest.mark.parametrize(("more", "expected"), [
    ("", range(20)),
    ("&from=earliest", range(20)),
    ("&from=latest", range(20, 20)),
    ("&from=7", range(7, 20)),
    ("&from=20", range(20, 20)),
    ("&from=3&to=5", range(3, 5)),
    ("&from=3&to=3", range(3, 3)),
    ("&from=12&to=14", range(12, 14)),
    ("&from=12&to=9999", range(12, 20)),
    ("&from=8&limit=5", range(8, 13)),
    ("&from=8&limit=0", range(8, 8)),
    ("&limit=1", range(1)),
    ("&from=1970-01-01T00:00:00Z&to=2", range(2)),
    ("&from=2099-01-01T00:00:00Z", range(20, 20)),
])  # fmt: skip
def test_ranges(filled: Nsqd, more: str, expected: range) -> None:
    found = read(filled, "filled", more)
    assert {s: body for s, (_, body) in found.messages.items()} == {s: b"m%d" % s for s in expected}
    log = log_of(filled, "filled")
    assert found.log_range == LogRange(log["node"], log["log"], expected.start, expected.stop)
    assert found.next == expected.stop
    *shown, last = lines(filled.http("GET", f"/topic/read?topic=filled{more}"))
    assert [(line["sequence"], line["body"]) for line in shown] == [(s, f"m{s}") for s in expected]
    assert last == {"next": expected.stop, "node": log["node"], "log": log["log"]}


def test_ids_and_times_are_those_that_consumers_saw(nsqd: Nsqd) -> None:
    publish(nsqd, "same", b"a", b"b")
    client = nsqd.connect()
    client.subscribe("same", "c", ready=2)
    got = {message.body: message for message in (client.message(), client.message())}
    *shown, _ = lines(nsqd.http("GET", "/topic/read?topic=same"))
    assert [line["body"] for line in shown] == ["a", "b"]
    for line in shown:
        message = got[line["body"].encode()]
        assert (line["id"].encode(), line["timestamp"]) == (message.id, message.timestamp)


def test_lines_of_odd_messages(nsqd: Nsqd) -> None:
    nsqd.post("/pub?topic=odd&defer=60000", b'"quoted"\n\xc3\xbc')
    nsqd.post("/pub?topic=odd", b"\xff\x00")
    synced(nsqd, "odd")
    first, second, _ = lines(nsqd.http("GET", "/topic/read?topic=odd", headers={"Accept": "*/*"}))
    assert (first["body"], first["delay_ms"]) == ('"quoted"\n\u00fc', 60_000)
    assert second["body_base64"] == "/wA="
    assert "delay_ms" not in second
    assert "body" not in second


def test_a_time_within_the_log(nsqd: Nsqd) -> None:
    publish(nsqd, "times", b"a")
    time.sleep(0.01)
    between = datetime.now(UTC).isoformat()
    time.sleep(0.01)
    publish(nsqd, "times", b"b")
    assert list(read(nsqd, "times", f"&from={between.replace('+', '%2B')}").messages) == [1]
    assert list(read(nsqd, "times", f"&from={between}").messages) == [1]  # `+` is a space in a query


def test_a_connection_may_ask_again(filled: Nsqd) -> None:
    connection = http.client.HTTPConnection(*filled.http_address, timeout=10)
    for _ in range(3):
        connection.request("GET", "/topic/read?topic=filled&from=19")
        assert len(connection.getresponse().read().splitlines()) == 2
    connection.close()


# What is refused


@pytest.mark.parametrize(("target", "status", "code"), [
    ("/topic/log", 400, "MISSING_ARG_TOPIC"),
    ("/topic/log?topic=a%20b", 400, "INVALID_ARG_TOPIC"),
    ("/topic/log?topic=nobody", 404, "TOPIC_NOT_FOUND"),
    ("/topic/log?topic=gone%23ephemeral", 400, "EPHEMERAL_TOPIC"),
    ("/topic/log?topic=filled&wait=soon", 400, "INVALID_ARG_WAIT"),
    ("/topic/log?topic=filled&wait=-1s", 400, "INVALID_ARG_WAIT"),
    ("/topic/log?topic=filled&wait=1s&next=x", 400, "INVALID_ARG_NEXT"),
    ("/topic/log?topic=filled&log=other", 409, "ANOTHER_LOG"),
    ("/topic/log?topic=filled&points=5", 400, "INVALID_ARG_POINTS"),
    ("/topic/log?topic=filled&points=1001", 400, "INVALID_ARG_POINTS"),
    ("/topic/log?topic=filled&points=9&from=earliest", 400, "INVALID_ARG_FROM"),
    ("/topic/log?topic=filled&points=9&from=5&to=4", 400, "INVALID_ARG_TO"),
    ("/topic/log?topic=filled&points=9&from=21", 400, "BEYOND_END"),
    ("/topic/read", 400, "MISSING_ARG_TOPIC"),
    ("/topic/read?topic=", 400, "INVALID_ARG_TOPIC"),
    ("/topic/read?topic=nobody", 404, "TOPIC_NOT_FOUND"),
    ("/topic/read?topic=gone%23ephemeral", 400, "EPHEMERAL_TOPIC"),
    ("/topic/read?topic=filled&from=yesterday", 400, "INVALID_ARG_FROM"),
    ("/topic/read?topic=filled&from=21", 400, "BEYOND_END"),
    ("/topic/read?topic=filled&to=x", 400, "INVALID_ARG_TO"),
    ("/topic/read?topic=filled&from=5&to=4", 400, "INVALID_ARG_TO"),
    ("/topic/read?topic=filled&limit=-1", 400, "INVALID_ARG_LIMIT"),
    ("/topic/read?topic=filled&limit=1&to=2", 400, "INVALID_ARG_LIMIT"),
    ("/topic/read?topic=filled&log=other", 409, "ANOTHER_LOG"),
    ("/topic/read?topic=filled;", 400, "INVALID_REQUEST"),
])  # fmt: skip
def test_refusals(filled: Nsqd, target: str, status: int, code: str) -> None:
    filled.post("/topic/create?topic=gone%23ephemeral")
    answer = filled.http("GET", target)
    assert refusal(answer) == (status, code)
    if code in ("ANOTHER_LOG", "BEYOND_END"):
        log = log_of(filled, "filled")
        assert {key: answer.json[key] for key in ("node", "log", "first", "next")} == {
            key: log[key] for key in ("node", "log", "first", "next")
        }


@pytest.mark.parametrize(("target", "status", "code"), [
    ("/channel/seek?topic=filled&channel=c", 400, "MISSING_ARG_FROM"),
    ("/channel/seek?topic=filled&from=0", 400, "MISSING_ARG_CHANNEL"),
    ("/channel/seek?channel=c&from=0", 400, "MISSING_ARG_TOPIC"),
    ("/channel/seek?topic=a%20b&channel=c&from=0", 400, "INVALID_ARG_TOPIC"),
    ("/channel/seek?topic=filled&channel=a%20b&from=0", 400, "INVALID_ARG_CHANNEL"),
    ("/channel/seek?topic=nobody&channel=c&from=0", 404, "TOPIC_NOT_FOUND"),
    ("/channel/seek?topic=filled&channel=nobody&from=0", 404, "CHANNEL_NOT_FOUND"),
    ("/channel/seek?topic=filled&channel=sought&from=soon", 400, "INVALID_ARG_FROM"),
    ("/channel/seek?topic=filled&channel=sought&from=21", 400, "BEYOND_END"),
    ("/channel/seek?topic=gone%23ephemeral&channel=c&from=0", 400, "EPHEMERAL_TOPIC"),
    ("/channel/seek?topic=filled&channel=c%23ephemeral&from=0", 400, "EPHEMERAL_CHANNEL"),
    ("/channel/create?topic=filled&channel=new&from=21", 400, "BEYOND_END"),
    ("/channel/create?topic=filled&channel=new&from=x", 400, "INVALID_ARG_FROM"),
    ("/channel/create?topic=filled&channel=c%23ephemeral&from=earliest", 400, "EPHEMERAL_CHANNEL"),
    ("/channel/create?topic=nobody&channel=c&from=earliest", 404, "TOPIC_NOT_FOUND"),
])  # fmt: skip
def test_refusals_of_places(filled: Nsqd, target: str, status: int, code: str) -> None:
    filled.post("/channel/create?topic=filled&channel=sought")
    assert refusal(filled.http("POST", target)) == (status, code)
    assert {channel["channel_name"] for channel in filled.topic("filled")["channels"]} <= {"sought", "begun"}


# Channels


def test_a_channel_begins_in_the_past(nsqd: Nsqd) -> None:
    publish(nsqd, "begin", b"a", b"b", b"c")
    nsqd.post("/channel/create?topic=begin&channel=all&from=earliest")
    nsqd.post("/channel/create?topic=begin&channel=some&from=2")
    nsqd.post("/channel/create?topic=begin&channel=none&from=latest")
    nsqd.post("/channel/create?topic=begin&channel=since&from=2001-01-01T00:00:00Z")
    depths = {name: nsqd.channel("begin", name)["depth"] for name in ("all", "some", "none", "since")}
    assert depths == {"all": 3, "some": 1, "none": 0, "since": 3}
    client = nsqd.connect()
    client.subscribe("begin", "some", ready=1)
    assert client.message().body == b"c"


def test_the_first_channel_may_leave_the_backlog_alone(nsqd: Nsqd) -> None:
    publish(nsqd, "backlog", b"a", b"b")
    nsqd.post("/channel/create?topic=backlog&channel=c&from=latest")
    assert (nsqd.topic("backlog")["depth"], nsqd.channel("backlog")["depth"]) == (0, 0)


def test_a_channel_that_exists_stays_where_it_is(nsqd: Nsqd) -> None:
    publish(nsqd, "exists", b"a")
    nsqd.post("/channel/create?topic=exists&channel=c&from=latest")
    nsqd.post("/channel/create?topic=exists&channel=c&from=earliest")
    assert nsqd.channel("exists")["depth"] == 0


def test_seek_survives_kill_9(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    publish(nsqd, "t", *(b"%d" % n for n in range(10)))
    client = nsqd.connect()
    client.subscribe("t", "c", ready=10)
    for _ in range(10):
        client.finish(client.message())
    eventually(lambda: nsqd.channel("t")["in_flight_count"] == 0)
    answer = nsqd.http("POST", "/channel/seek?topic=t&channel=c&from=4")
    assert (answer.status, answer.json) == (200, {"cursor": 4})
    nsqd.kill()
    nsqd.start()
    client = nsqd.connect()
    client.subscribe("t", "c", ready=10)
    assert sorted(client.message().body for _ in range(6)) == [b"%d" % n for n in range(4, 10)]


def test_what_retention_keeps_is_delivered_again(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-bytes-per-file=1000", "retention-bytes=1MB")
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    bodies = [b"%d" % n * 300 for n in range(10)]
    client = nsqd.connect()
    client.subscribe("t", "c", ready=10)
    for body in bodies:
        publish(nsqd, "t", body)
        client.finish(client.message())
    eventually(lambda: nsqd.channel("t")["in_flight_count"] == 0)
    nsqd.restart()
    assert nsqd.http("POST", "/channel/seek?topic=t&channel=c&from=earliest").json == {"cursor": 0}
    client = nsqd.connect()
    client.subscribe("t", "c", ready=10)
    assert client.bodies(10) == bodies


# Removed messages, and what must never change


def test_removed_messages_are_answered_with_gone(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-bytes-per-file=1000")
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    for _ in range(10):
        publish(nsqd, "t", b"x" * 400)
    nsqd.post("/channel/seek?topic=t&channel=c&from=6")
    first = eventually(lambda: log_of(nsqd, "t")["first"])
    assert 0 < first <= 6
    for answer in (
        nsqd.http("GET", "/topic/read?topic=t&from=0"),
        nsqd.http("GET", "/topic/log?topic=t&points=9&from=0"),
        nsqd.http("POST", "/channel/seek?topic=t&channel=c&from=0"),
        nsqd.http("POST", "/channel/create?topic=t&channel=d&from=0"),
    ):
        assert refusal(answer) == (410, "GONE")
        assert answer.json["first"] == first
    assert list(read(nsqd, "t").messages) == list(range(first, 10))
    assert nsqd.http("POST", "/channel/seek?topic=t&channel=c&from=earliest").json == {"cursor": first}
    assert nsqd.channel("t")["depth"] == 10 - first


def test_a_deleted_and_recreated_topic_is_another_log(nsqd: Nsqd) -> None:
    publish(nsqd, "again", b"old")
    before = log_of(nsqd, "again")
    nsqd.post("/topic/delete?topic=again")
    publish(nsqd, "again", b"new")
    after = log_of(nsqd, "again")
    assert (after["node"], after["next"]) == (before["node"], before["next"])
    assert after["log"] != before["log"]
    for path in ("/topic/read", "/topic/log"):
        answer = nsqd.http("GET", f"{path}?topic=again&log={before['log']}")
        assert refusal(answer) == (409, "ANOTHER_LOG")
        assert answer.json["log"] == after["log"]


def test_damage_is_told(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-bytes-per-file=1000")
    for n in range(6):
        publish(nsqd, "t", b"%d" % n * 400)
    segments = sorted(nsqd.data_path.glob("topics/*/*.log"))
    assert len(segments) == 3
    data = bytearray(segments[1].read_bytes())
    data[500] ^= 1  # in the header of the second record
    segments[1].write_bytes(data)
    found = read(nsqd, "t")
    assert sorted(found.messages) == [0, 1, 2, 4, 5]
    assert [(gap.first, gap.end) for gap in found.gaps] == [(3, 4)]
    shown = lines(nsqd.http("GET", "/topic/read?topic=t"))
    assert {"gap": [3, 4], "reason": "damaged"} in shown
    assert [line["sequence"] for line in shown if "sequence" in line] == [0, 1, 2, 4, 5]


class Follower:
    """Reads all synced messages as they come, and keeps everything that it saw."""

    def __init__(self, nsqd: Nsqd, topic: str) -> None:
        self.nsqd = nsqd
        self.topic = topic
        self.logs: dict[str, dict[int, tuple[int, bytes]]] = {}
        self.answers = 0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        log, following = "", 0
        while not self._stop.is_set():
            try:
                found = log_of(self.nsqd, self.topic, f"&wait=200ms&next={following}")
                if found["log"] != log:
                    log, following = found["log"], 0
                following = self._take(log, following)
            except (OSError, http.client.HTTPException):  # nsqd is being killed, or is starting
                time.sleep(0.01)
            except AssertionError as error:
                self.errors.append(str(error))
                return

    def _take(self, log: str, following: int) -> int:
        found = read(self.nsqd, self.topic, f"&from={following}&log={log}")
        seen = self.logs.setdefault(log, {})
        assert not found.gaps
        assert sorted(found.messages) == list(range(following, found.next))
        for sequence, message in found.messages.items():
            assert seen.setdefault(sequence, message) == message, f"{sequence} has become another message"
        self.answers += 1
        return found.next


@pytest.mark.parametrize("ack", ["memory", "written", "synced"])
def test_what_was_seen_never_changes_whatever_dies(start_nsqd: StartNsqd, ack: str) -> None:
    nsqd = start_nsqd(f"ack={ack}", "max-bytes-per-file=20000")
    nsqd.post("/topic/create?topic=t")
    stop = threading.Event()
    confirmed: list[bytes] = []

    def publish_on_and_on(name: str) -> None:
        numbers = iter(range(10**9))
        while not stop.is_set():
            try:
                with_connection(numbers, name)
            except (OSError, Disconnected):
                time.sleep(0.01)

    def with_connection(numbers: Iterator[int], name: str) -> None:
        client = nsqd.connect()
        for number in numbers:
            if stop.is_set():
                return
            body = f"{name} {number}".encode()
            client.publish("t", body)
            confirmed.append(body)

    publishers = [threading.Thread(target=publish_on_and_on, args=(name,)) for name in ("a", "b")]
    with Follower(nsqd, "t") as follower:
        for publisher in publishers:
            publisher.start()
        for _ in range(sized(short=3, long=5)):
            follower.answers = 0
            eventually(lambda: follower.answers > 3 or follower.errors, timeout=30)
            nsqd.kill()
            nsqd.start()
        stop.set()
        for publisher in publishers:
            publisher.join(TIMEOUT)
        log = synced_log(nsqd)
        eventually(lambda: len(follower.logs[log["log"]]) == log["next"] or follower.errors, timeout=30)
        # Reading from the beginning in long pieces returns what the follower saw piece by piece.
        everything: dict[int, tuple[int, bytes]] = {}
        while len(everything) < log["next"]:
            everything |= read(nsqd, "t", f"&from={len(everything)}").messages
    assert not follower.errors
    assert follower.logs[log["log"]] == everything
    if ack != "memory":
        assert set(confirmed) <= {body for _, body in everything.values()}


def synced_log(nsqd: Nsqd) -> Any:
    """Return the whole log when nobody publishes any more."""
    before = log_of(nsqd, "t")
    while (now := log_of(nsqd, "t", "&wait=500ms"))["next"] != before["next"]:
        before = now
    return now


# Many readers


def test_readers_are_bounded_and_give_back_what_they_hold(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    publish(nsqd, "big", *(b"x" * 200_000 for _ in range(20)))
    for _ in range(4):
        publish(nsqd, "big", *(b"x" * 200_000 for _ in range(20)))
    before = nsqd.descriptors
    request = b"GET /topic/read?topic=big HTTP/1.1\r\nHost: x\r\nAccept: application/msgpack\r\n\r\n"
    readers = []
    for _ in range(16):
        sock = socket.create_connection(nsqd.http_address, timeout=10)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(request)
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        readers.append(sock)
    assert refusal(nsqd.http("GET", "/topic/read?topic=big")) == (503, "TOO_MANY_READERS")
    assert nsqd.http("GET", "/ping").status == 200
    assert nsqd.resident_bytes < 250_000_000
    for sock in readers:
        sock.close()
    eventually(lambda: nsqd.descriptors <= before)
    assert read(nsqd, "big").next == 100


def test_a_reader_is_told_where_to_go_on_when_nsqd_stops(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    for _ in range(5):
        publish(nsqd, "big", *(b"x" * 200_000 for _ in range(20)))
    reader = HistoryReader()
    connection = http.client.HTTPConnection(*nsqd.http_address, timeout=10)
    connection.request("GET", "/topic/read?topic=big", headers=PACKED)
    answer = connection.getresponse()
    stopping = threading.Thread(target=nsqd.stop)
    stopping.start()
    eventually(lambda: "NSQ: stopping" in nsqd.log)
    while data := answer.read(65536):
        reader.receive(data)
    stopping.join(TIMEOUT)
    *_, end = iter(reader.next_event, None)
    assert reader.complete
    assert isinstance(end, End)
    assert end.next < 100
    connection.close()


def test_where_a_channel_stands_is_told_and_nothing_changes(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"zero", b"one", b"two", b"three")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    consumer = nsqd.connect()
    consumer.subscribe(topic, ready=2)
    first, second = consumer.messages(2)
    consumer.finish(first)
    consumer.send(b"RDY 0\n")
    consumer.requeue(second)
    consumer.in_step()
    path = f"/channel/position?topic={topic}&channel=c"
    known = nsqd.http("GET", path).json
    assert known["waiting"][0][1] >= 1
    assert known["end"] == 4
    assert max(sequence for sequence, _ in known["waiting"]) == 3
    assert nsqd.http("GET", path).json == known
    assert len(nsqd.http("GET", f"{path}&limit=1").json["waiting"]) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("", 400, "MISSING_ARG_TOPIC"),
        ("topic=nosuch&channel=c", 404, "TOPIC_NOT_FOUND"),
        ("topic=nosuch&channel=c%23ephemeral", 400, "EPHEMERAL_CHANNEL"),
        ("topic=nosuch&channel=c&limit=1001", 400, "INVALID_ARG_LIMIT"),
        ("topic=nosuch&channel=c&limit=-1", 400, "INVALID_ARG_LIMIT"),
    ],
)
def test_positions_that_cannot_be_told(nsqd: Nsqd, arguments: str, status: int, message: str) -> None:
    answer = nsqd.http("GET", f"/channel/position?{arguments}")
    assert (answer.status, answer.json["message"]) == (status, message)
