"""What a channel had is given back, and finished messages come once more: a real nsqd, killed right after its answer."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.support.brokers import StartNsqd
from tests.support.client import Client
from tests.support.process import Nsqd, eventually

CHANNEL = "topic=t&channel=c"
BODIES = [b"%d" % number for number in range(140)]


@pytest.fixture
def nsqd(start_nsqd: StartNsqd) -> Nsqd:
    """Return a broker whose channel has 140 messages."""
    nsqd = start_nsqd("retention-time=1h")
    nsqd.post("/topic/create?topic=t")
    nsqd.post(f"/channel/create?{CHANNEL}")
    nsqd.connect().publish("t", *BODIES)
    eventually(lambda: nsqd.channel("t")["depth"] == 140)
    return nsqd


def state(nsqd: Nsqd) -> bytes:
    answer = nsqd.http("GET", f"/channel/state?{CHANNEL}")
    assert answer.status == 200, answer
    return answer.body


def restore(nsqd: Nsqd, document: bytes) -> Any:
    answer = nsqd.http("POST", f"/channel/restore?{CHANNEL}", document)
    assert answer.status == 200, answer
    return answer.json


def kill(nsqd: Nsqd) -> None:
    nsqd.kill()
    nsqd.start()


def everything(nsqd: Nsqd, count: int, channel: str = "c") -> Counter[bytes]:
    """Receive and finish all that comes until the channel has nothing left, and return how often each body came."""
    client = nsqd.connect()
    client.subscribe("t", channel, ready=200)
    messages = client.messages(count)
    client.finish(*messages)
    eventually(lambda: _is_empty(nsqd, channel))
    client.in_step()
    client.close()
    return Counter(message.body for message in messages)


def _is_empty(nsqd: Nsqd, channel: str) -> bool:
    found = nsqd.channel("t", channel)
    return (found["depth"], found["in_flight_count"], found["deferred_count"]) == (0, 0, 0)


def finish(client: Client, count: int) -> None:
    client.subscribe("t", "c", ready=1)
    for _ in range(count):
        client.finish(client.message())
    client.in_step()


@pytest.mark.parametrize("action", ["empty", "seek", "delete"])
def test_an_action_is_undone_and_survives_kill_9(nsqd: Nsqd, action: str) -> None:
    before = state(nsqd)
    nsqd.post(f"/channel/{action}?{CHANNEL}{'&from=latest' if action == 'seek' else ''}")
    assert restore(nsqd, before) == {"restored": 140, "gone": 0}
    kill(nsqd)
    assert nsqd.channel("t")["depth"] == 140
    assert everything(nsqd, 140) == Counter(BODIES)


def test_going_back_is_undone_and_survives_kill_9(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    finish(client, 100)
    client.close()
    eventually(lambda: nsqd.channel("t")["in_flight_count"] == 1)  # the next one, which comes with a second attempt
    before = state(nsqd)
    nsqd.post(f"/channel/seek?{CHANNEL}&from=earliest")
    assert nsqd.channel("t")["depth"] == 140
    assert restore(nsqd, before) == {"restored": 40, "gone": 0}
    kill(nsqd)
    assert everything(nsqd, 40) == Counter(BODIES[100:])


def test_an_undone_empty_keeps_attempts_pauses_and_times(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    client.subscribe("t", "c", ready=2)
    first, second = client.messages(2)
    client.send(b"RDY 0\n")
    client.requeue(first)
    client.requeue(second, 3_600_000)
    client.in_step()
    client.close()
    nsqd.post(f"/channel/pause?{CHANNEL}")
    before = state(nsqd)
    nsqd.post(f"/channel/delete?{CHANNEL}")
    nsqd.connect().publish("t", b"later")
    assert restore(nsqd, before) == {"restored": 140, "gone": 0}
    kill(nsqd)
    found = nsqd.channel("t")
    assert (found["paused"], found["depth"], found["deferred_count"]) == (True, 140, 1)
    nsqd.post(f"/channel/unpause?{CHANNEL}")
    client = nsqd.connect()
    client.subscribe("t", "c", ready=200)
    attempts = {message.body: message.attempts for message in client.messages(140)}
    assert attempts == {b"0": 2, b"later": 1} | dict.fromkeys(BODIES[2:], 1)


def test_three_finished_messages_come_once_more_to_one_channel(nsqd: Nsqd) -> None:
    nsqd.post("/channel/create?topic=t&channel=other")
    assert everything(nsqd, 140) == Counter(BODIES)
    answer = nsqd.http("POST", f"/channel/redeliver?{CHANNEL}&from=10&to=12&log=x")
    assert (answer.status, answer.json["message"]) == (409, "ANOTHER_LOG")
    answer = nsqd.http("POST", f"/channel/redeliver?{CHANNEL}&sequence=10&sequence=77&sequence=139")
    assert (answer.status, answer.json) == (200, {"redelivered": 3, "waiting": 0, "gone": 0})
    kill(nsqd)
    assert nsqd.channel("t", "other")["depth"] == 0
    assert nsqd.channel("t")["depth"] == 3
    assert everything(nsqd, 3) == Counter([b"10", b"77", b"139"])
    nsqd.restart()
    assert nsqd.channel("t")["depth"] == 0


def test_what_retention_has_removed_is_gone(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-bytes-per-file=1000")
    nsqd.post("/topic/create?topic=t")
    nsqd.post(f"/channel/create?{CHANNEL}")
    producer = nsqd.connect()
    for _ in range(10):
        producer.publish("t", b"x" * 400)
    before = state(nsqd)
    nsqd.post(f"/channel/empty?{CHANNEL}")
    first = eventually(lambda: nsqd.http("GET", "/topic/log?topic=t").json["first"])
    assert restore(nsqd, before) == {"restored": 10 - first, "gone": first}
    assert nsqd.channel("t")["depth"] == 10 - first
    answer = nsqd.http("POST", f"/channel/redeliver?{CHANNEL}&from=0&to=10")
    assert answer.json == {"redelivered": 0, "waiting": 10 - first, "gone": first}


def test_a_document_that_does_not_fit_is_refused_and_changes_nothing(nsqd: Nsqd) -> None:
    before = json.loads(state(nsqd))
    finish(nsqd.connect(), 1)
    after = json.loads(state(nsqd))
    for document, status, message in (
        (b"{}", 400, "INVALID_BODY"),
        (json.dumps({**before, "requeued": [[7, 1], [7, 1]]}).encode(), 400, "INVALID_BODY"),
        (json.dumps({**before, "end": 141}).encode(), 400, "BEYOND_END"),
        (b" " * (1 << 20) + json.dumps(before).encode(), 413, "BODY_TOO_BIG"),
    ):
        answer = nsqd.http("POST", f"/channel/restore?{CHANNEL}", document)
        assert (answer.status, answer.json["message"]) == (status, message)
    nsqd.restart()
    assert nsqd.channel("t")["depth"] == after["count"]
    nsqd.post("/topic/delete?topic=t")
    nsqd.post("/topic/create?topic=t")
    answer = nsqd.http("POST", f"/channel/restore?{CHANNEL}", json.dumps(before).encode())
    assert (answer.status, answer.json["message"]) == (409, "ANOTHER_LOG")
    assert nsqd.topic("t")["channels"] == []
