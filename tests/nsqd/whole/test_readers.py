"""Readers of a topic's log on a real nsqd: what is left of them after kill -9, a restart and a deletion."""

from __future__ import annotations

import json
from typing import Any

from nsqd.log.data_path import READERS_JSON
from tests.nsqd.whole.test_history import log_of, publish
from tests.support.brokers import StartNsqd
from tests.support.process import Answer, Nsqd, eventually


def report(nsqd: Nsqd, topic: str, sequence: int, into: str = "/tables/orders") -> Answer:
    body = {"name": "land", "log": log_of(nsqd, topic)["log"], "sequence": sequence, "into": into}
    return nsqd.http("POST", f"/topic/reader?topic={topic}", json.dumps(body).encode())


def readers(nsqd: Nsqd, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log_of(nsqd, topic, "&readers=true")["readers"]
    return found


def test_behind_in_messages_bytes_and_time(nsqd: Nsqd) -> None:
    publish(nsqd, "behind", b"a", b"b")
    publish(nsqd, "behind", b"c")
    last = log_of(nsqd, "behind")["last_time"]
    assert report(nsqd, "behind", 2).status == 200
    (found,) = readers(nsqd, "behind")
    assert (found["behind"], found["behind_bytes"], found["behind_since"]) == (1, 56 + 5, last)
    assert report(nsqd, "behind", 4).json["message"] == "BEYOND_END"


def test_a_kill_keeps_what_was_reported(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    publish(nsqd, "orders", *[b"x"] * 10)
    report(nsqd, "orders", 4)
    eventually(lambda: (nsqd.data_path / READERS_JSON).exists(), timeout=30)
    nsqd.kill()
    nsqd.start()
    (found,) = readers(nsqd, "orders")
    assert (found["sequence"], found["behind"], found["into"]) == (4, 6, "/tables/orders")


def test_a_restart_keeps_what_was_reported_just_before(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    publish(nsqd, "orders", b"x")
    for into in ("/a", "/b"):
        report(nsqd, "orders", 1, into)
    assert nsqd.http("POST", "/topic/reader/delete?topic=orders&name=land&into=/a").status == 200
    nsqd.restart()
    assert [it["into"] for it in readers(nsqd, "orders")] == ["/b"]
