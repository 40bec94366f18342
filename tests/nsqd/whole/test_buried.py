"""Buried messages of a real nsqd: through a kill -9, listed, kicked at a rate, discarded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsqcommon.wire.commands import rdy
from nsqcommon.wire.message import Message
from tests.support.brokers import StartNsqd
from tests.support.client import Client
from tests.support.process import Nsqd, eventually

CHANNEL = "topic=t&channel=c"
COUNT = 50


@pytest.fixture
def nsqd(start_nsqd: StartNsqd, tmp_path: Path) -> Nsqd:
    """Return a broker that has buried 50 messages of channel c, after one attempt each; channel d has got them too."""
    file = tmp_path / "policy.toml"
    file.write_text('[[policy]]\nchannel = "c"\nmax_attempts = 1\n')
    nsqd = start_nsqd(f"policy-file={file}")
    nsqd.post("/topic/create?topic=t")
    for channel in "cd":
        nsqd.post(f"/channel/create?topic=t&channel={channel}")
    nsqd.connect().publish("t", *[b"%d" % number for number in range(COUNT)])
    client = nsqd.connect()
    client.subscribe("t", "c", ready=COUNT)
    for message in client.messages(COUNT):
        client.send(b"REQ %b 0\n" % message.id)
    assert eventually(lambda: nsqd.channel("t").get("buried_count") == COUNT)
    client.close()
    return nsqd


def listed(nsqd: Nsqd, more: str = "") -> list[Any]:
    answer = nsqd.http("GET", f"/channel/buried?{CHANNEL}{more}")
    assert answer.status == 200, answer
    return [json.loads(line) for line in answer.body.splitlines()]


def kill(nsqd: Nsqd) -> None:
    nsqd.kill()
    nsqd.start()


def test_what_is_buried_outlives_kill_9_and_comes_back_when_it_is_kicked(nsqd: Nsqd) -> None:
    before = listed(nsqd)
    assert [it["body"] for it in before] == [f"{number}" for number in range(COUNT)]
    assert {it["reason"] for it in before} == {"1 attempts, the last one requeued"}
    kill(nsqd)
    assert listed(nsqd) == before
    answer = nsqd.http("POST", f"/channel/kick?{CHANNEL}")
    assert (answer.json["kicked"], answer.json["job"]) == (COUNT, None)
    kill(nsqd)
    client = nsqd.connect()
    client.subscribe("t", "c", ready=COUNT)
    messages = client.messages(COUNT)
    client.finish(*messages)
    assert sorted(message.id.decode() for message in messages) == sorted(it["id"] for it in before)
    assert {message.attempts for message in messages} == {1}
    assert nsqd.channel("t", "d")["depth"] == COUNT  # nothing came twice here


def test_a_kick_at_a_rate_goes_on_after_kill_9(nsqd: Nsqd) -> None:
    answer = nsqd.http("POST", f"/channel/kick?{CHANNEL}&rate=20")
    assert answer.json["job"]["rate"] == 20
    assert eventually(lambda: nsqd.channel("t")["depth"] >= 5)
    kill(nsqd)
    assert eventually(lambda: nsqd.channel("t")["depth"] == COUNT)
    found = nsqd.http("GET", f"/channel/jobs?{CHANNEL}").json["jobs"]
    assert eventually(lambda: nsqd.http("GET", f"/channel/jobs?{CHANNEL}").json["jobs"][0]["ended_at"]), found
    assert listed(nsqd) == []


def test_what_is_discarded_stays_away(nsqd: Nsqd) -> None:
    answer = nsqd.http("POST", f"/channel/discard?{CHANNEL}&limit=30")
    assert answer.json == {"discarded": 30, "job": None}
    last = nsqd.http("GET", "/changes").json["changes"][-1]
    assert (last["what"], last["topic"], last["channel"], last["detail"]) == ("discard", "t", "c", "limit=30")
    kill(nsqd)
    assert [it["body"] for it in listed(nsqd)] == [f"{number}" for number in range(30, COUNT)]
    assert nsqd.channel("t")["depth"] == 0


def test_bodies_come_from_the_disk_as_well(nsqd: Nsqd) -> None:
    kill(nsqd)
    assert [it["body"] for it in listed(nsqd, "&after=39")] == [f"{number}" for number in range(40, COUNT)]


def test_a_kick_that_is_taken_back_stays_so_after_kill_9(nsqd: Nsqd) -> None:
    before = listed(nsqd)
    kick = nsqd.http("POST", f"/channel/kick?{CHANNEL}").json["kick"]
    client = nsqd.connect()
    client.subscribe("t", "c", ready=7)
    delivered = {message.body for message in client.messages(7)}
    client.send(b"RDY 0\n")
    answer = nsqd.http("POST", f"/channel/kick/undo?{CHANNEL}&kick={kick}")
    assert (answer.status, answer.json) == (200, {"kicked": COUNT, "buried": COUNT - 7, "job": None})
    kill(nsqd)
    assert listed(nsqd) == [it for it in before if it["body"].encode() not in delivered]
    answer = nsqd.http("POST", f"/channel/kick/undo?{CHANNEL}&kick={kick}")
    assert (answer.status, answer.json["message"]) == (404, "KICK_NOT_FOUND")


# A channel that is full and drops its oldest messages

BOUND = 100


@pytest.fixture
def bounded(start_nsqd: StartNsqd, tmp_path: Path) -> Nsqd:
    """Return a broker whose channel c holds 100 messages, and drops the oldest of what is more."""
    file = tmp_path / "policy.toml"
    file.write_text(f'[[policy]]\nchannel = "c"\nmax_messages = {BOUND}\noverflow = "drop-oldest"\n')
    nsqd = start_nsqd(f"policy-file={file}")
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    return nsqd


def hold(nsqd: Nsqd, name: str, count: int, **settings: int) -> tuple[Client, list[Message]]:
    """Publish so many messages, and return the consumer that has them."""
    client = nsqd.connect()
    client.identify(feature_negotiation=True, extensions=["bury"], **settings)
    client.subscribe("t", ready=count)
    nsqd.connect().publish("t", *[b"%s %d" % (name.encode(), number) for number in range(count)])
    messages = client.messages(count)
    client.send(rdy(0))
    client.in_step()
    return client, messages


def test_a_full_channel_delivers_what_was_kicked_or_timed_out_or_was_in_flight_at_a_kill_9(bounded: Nsqd) -> None:
    burying, messages = hold(bounded, "kicked", 50)
    burying.send(*[b"BURY %b broken\n" % message.id for message in messages])
    assert eventually(lambda: bounded.channel("t").get("buried_count") == 50)
    hold(bounded, "flying", 40)
    hold(bounded, "late", 40, msg_timeout=1000)
    # On a busy machine some of them may time out, come again, and time out again, before nsqd has heard RDY 0.
    assert eventually(lambda: (it := bounded.channel("t"))["timeout_count"] >= 40 and it["in_flight_count"] == 40)
    publisher = bounded.connect()
    publisher.publish("t", *[b"new"] * BOUND)
    assert bounded.http("POST", f"/channel/kick?{CHANNEL}").json["kicked"] == 50
    publisher.publish("t", *[b"new"] * BOUND)
    assert bounded.channel("t")["depth"] == BOUND
    kill(bounded)
    publisher = bounded.connect()
    publisher.publish("t", *[b"new"] * BOUND)
    wanted = {b"%s %d" % (name, at) for name, count in NAMED for at in range(count)}
    client = bounded.connect()
    client.subscribe("t", ready=2 * BOUND)
    assert {*client.bodies(len(wanted))} == wanted
    assert bounded.channel("t")["policy_counts"]["full, dropped"] == BOUND


NAMED = ((b"kicked", 50), (b"late", 40), (b"flying", 40))


def test_a_kick_that_does_not_fit_is_refused_and_force_does_it(bounded: Nsqd) -> None:
    burying, messages = hold(bounded, "kicked", 50)
    burying.send(*[b"BURY %b broken\n" % message.id for message in messages])
    assert eventually(lambda: bounded.channel("t").get("buried_count") == 50)
    for number in range(60):
        bounded.post("/pub?topic=t&defer=3600000", b"%d" % number)
    answer = bounded.http("POST", f"/channel/kick?{CHANNEL}")
    assert (answer.status, answer.json["message"], answer.json["fits"]) == (409, "FULL", 40)
    assert bounded.http("POST", f"/channel/kick?{CHANNEL}&limit=40").json["kicked"] == 40
    assert bounded.http("POST", f"/channel/kick?{CHANNEL}&force=true").json["kicked"] == 10
    client = bounded.connect()
    client.subscribe("t", ready=50)
    assert len({*client.bodies(50)}) == 50
