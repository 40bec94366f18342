"""The list of messages in flight of a real nsqd, with consumers over TCP and HTTP."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from nsqcommon.wire.commands import touch
from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, eventually

AT = "topic=t&channel=c"
SECOND = 10**9


def listed(nsqd: Nsqd, query: str = "") -> list[Any]:
    answer = nsqd.http("GET", f"/channel/inflight?{AT}{query}")
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


@pytest.fixture
def nsqd(start_nsqd: StartNsqd) -> Nsqd:
    nsqd = start_nsqd()
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    return nsqd


def test_what_a_worker_is_doing_is_listed_while_it_works_and_after_it_has_gone(nsqd: Nsqd) -> None:
    nsqd.connect().publish("t", b"first", b"second")
    worker = nsqd.connect()
    worker.identify(client_id="worker", hostname="worker.lan", user_agent="shop/1.5", feature_negotiation=True)
    worker.subscribe("t", "c", ready=1)
    (message,) = worker.messages(1)
    worker.send(touch(message.id))
    (line,) = eventually(lambda: [it for it in listed(nsqd) if "last_touch" in it])
    (client,) = nsqd.channel("t")["clients"]
    assert line["id"] == message.id.decode()
    assert line["consumer"] == {name: client[name] for name in line["consumer"]}
    assert (line["consumer"]["client_id"], line["consumer"]["user_agent"]) == ("worker", "shop/1.5")
    assert (line["attempts"], line["sequence"], line["size"]) == (1, 0, 5)
    assert client["touch_count"] == 1
    assert abs(client["last_touch_at"] - line["last_touch"]) < SECOND
    assert line["since"] <= line["last_touch"] < line["deadline"] <= line["last_touch"] + 61 * SECOND
    worker.close()
    (line,) = eventually(lambda: [it for it in listed(nsqd) if it["consumer"].get("gone")])
    assert [it["id"] for it in listed(nsqd, "&client=worker")] == [line["id"]]
    (lease,) = nsqd.http("POST", f"/sub?{AT}").body.splitlines()
    assert [it["id"] for it in listed(nsqd)] == [line["id"], json.loads(lease)["id"]]
    assert [it["consumer"]["version"] for it in listed(nsqd)] == ["V2", "HTTP"]


def test_a_place_in_the_list_of_another_run_is_refused(nsqd: Nsqd) -> None:
    nsqd.connect().publish("t", b"x")
    nsqd.http("POST", f"/sub?{AT}")
    (line,) = listed(nsqd)
    nsqd.restart()
    answer = nsqd.http("GET", f"/channel/inflight?{AT}&after={line['after']}")
    assert (answer.status, answer.json["message"]) == (409, "STARTED_ANEW")
    nsqd.http("POST", f"/sub?{AT}")
    (again,) = listed(nsqd)
    assert (again["sequence"], again["attempts"]) == (0, 2)


def test_a_list_of_another_log_is_refused(nsqd: Nsqd) -> None:
    nsqd.connect().publish("t", b"x")
    nsqd.http("POST", f"/sub?{AT}")
    summary = nsqd.http("GET", f"/channel/inflight?{AT}&summary=true").json
    assert abs(summary.pop("now") - time.time_ns()) < 60 * SECOND
    assert summary == {"count": 1, "log": nsqd.http("GET", "/topic/log?topic=t").json["log"]}
    assert len(listed(nsqd, f"&log={summary['log']}")) == 1
    answer = nsqd.http("GET", f"/channel/inflight?{AT}&log=other")
    assert (answer.status, answer.json["message"]) == (409, "ANOTHER_LOG")
