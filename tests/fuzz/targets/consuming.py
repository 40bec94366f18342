"""Consuming over HTTP: a query, and a list of ids, of which `%` stands for one that is leased."""

from __future__ import annotations

import json
from random import Random
from typing import Final

from tests.nsqd.http.conftest import Nsqd

VERBS: Final = ("sub", "fin", "req", "touch", "bury")
STATUSES: Final = {200, 400, 404, 413, 429}


def run(data: bytes, random: Random) -> None:
    nsqd = Nsqd()
    nsqd.broker.turn.note = lambda text: None
    nsqd.post("/sub?topic=t&channel=c")
    for body in (b"a", data[:90] or b"b"):
        nsqd.post("/pub?topic=t", body)
    leased = json.loads(nsqd.post("/sub?topic=t&channel=c").body)["id"].encode()
    query, _, ids = data.partition(b"\n")
    # A poll that may wait would wait for ever: nothing is published here.
    target = query.decode("latin-1").replace("#", "").replace("wait", "want")
    answer = nsqd.post(f"/{random.choice(VERBS)}?{target}", ids.replace(b"%", leased))
    assert answer.status in STATUSES, answer
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert answer.status == 200 or lines[0]["message"]
    channel = nsqd.broker.topics["t"].channels["c"]
    assert len(channel.in_flight) + channel.depth + len(channel.ledger.deferred) + len(channel.buried_queue.buried) <= 2
