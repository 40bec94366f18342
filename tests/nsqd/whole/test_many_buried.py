"""Tens of thousands of buried messages: a short form of `python -m bench memory --only buried`, with generous limits."""

from __future__ import annotations

import json

from nsqcommon.wire.extensions import bury
from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, eventually

COUNT = 30_000
WINDOW = 2_000
PAGE = 100
# Seconds of processor time, so that it does not matter how busy the machine is.
MOST_WORK = 0.5  # for a page; usually less than the 0.01 that can be measured
START = 6.0  # usually 0.7


def listed(nsqd: Nsqd, first: int) -> list[int]:
    after = f"&after={first - 1}" if first else ""
    answer = nsqd.http("GET", f"/channel/buried?topic=t&channel=c&limit={PAGE}{after}")
    return [json.loads(line)["sequence"] for line in answer.body.splitlines()]


def test_many_buried_messages_cost_little(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    publisher, client = nsqd.connect(), nsqd.connect()
    for _ in range(COUNT // WINDOW):
        publisher.publish("t", *[b"x" * 100] * WINDOW)
    client.identify(feature_negotiation=True, extensions=["bury"])
    client.subscribe("t", "c", ready=WINDOW)
    for _ in range(COUNT // WINDOW):
        client.send(*(bury(message.id, f"reason {message.id[-1]}") for message in client.messages(WINDOW)))
    assert eventually(lambda: nsqd.channel("t")["buried_count"] == COUNT)
    assert nsqd.resident_bytes < 200e6
    for first in (0, COUNT // 2, COUNT - PAGE):
        before = nsqd.cpu_seconds
        assert listed(nsqd, first) == [*range(first, first + PAGE)]
        assert nsqd.cpu_seconds - before < MOST_WORK
    nsqd.kill()
    nsqd.start()
    assert nsqd.cpu_seconds < START
    assert nsqd.channel("t")["buried_count"] == COUNT
    assert nsqd.resident_bytes < 200e6
