"""Popular clients, unmodified: each publishes to nsqd and consumes from it, in a process of its own.

A peer reads its task from stdin, and reports on stdout what arrived: (body, attempts, seconds since its start).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from nsqcommon.wire.commands import hdpub, hmpub, hpub, pub
from nsqcommon.wire.headers import NONE, encode_headers
from tests.e2e.go_peer import go_peer
from tests.support import forked
from tests.support.brokers import StartNsqd
from tests.support.buried import buried_on_disk
from tests.support.needs import need
from tests.support.process import ROOT, Nsqd, eventually

PEERS: Final = Path(__file__).parent / "peers"
PYTHON_PEERS: Final = ("pynsq", "gnsq", "ansq")
ALL_PEERS: Final = (*PYTHON_PEERS, "nsqjs", "go-nsq")
DELAY_MS: Final = 400
LIMIT: Final = 120.0  # seconds for a peer
GIVES_UP: Final = 100.0  # seconds after which a peer says what it has got
# Seconds. A message that is touched in the middle of its timeout is finished soon after it would have ended. A busy peer
# may be late by nearly half of the timeout with both.
TIMEOUT: Final = 5.0
TOUCH_AFTER: Final = 2.5
FINISH_AFTER: Final = 5.3


def plan() -> dict[str, Any]:
    """Return some fifteen hundred messages; the beginning of a body tells its consumer what to do with it."""
    pub = [f"plain-{number}" for number in range(600)]
    pub += [f"requeue-{number}" for number in range(100)] + [f"touch-{number}" for number in range(20)]
    mpub = [[f"many-{number}-{place}" for place in range(100)] for number in range(7)]
    dpub = [f"deferred-{number}" for number in range(50)]
    expected = pub + [body for bodies in mpub for body in bodies] + dpub
    times = {"delay_ms": DELAY_MS, "touch_after": TOUCH_AFTER, "finish_after": FINISH_AFTER}
    return {"pub": pub, "mpub": mpub, "dpub": dpub, "expected": expected, **times}


def command(peer: str) -> list[str]:
    if peer in PYTHON_PEERS:
        return [sys.executable, "-P", "-m", f"tests.e2e.peers.{peer}_peer"]
    if peer == "go-nsq":
        return [str(go_peer())]
    need("Node", "nsqjs")
    return ["node", str(PEERS / f"{peer}_peer.js")]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(peer: str, nsqd: Nsqd, what: dict[str, Any], *, topic: str = "") -> list[tuple[str, int, float]]:
    host, port = nsqd.tcp
    topic = topic or peer
    stats = f"http://{host}:{nsqd.http_address[1]}/stats?format=json&topic={topic}&channel=channel"
    done = forked.run(
        command(peer),
        env=environment(),
        input=json.dumps({"host": host, "port": port, "topic": topic, "stats": stats, "limit": GIVES_UP, **what}),
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return [(body, attempts, seconds) for body, attempts, seconds in json.loads(done.stdout)]


@pytest.mark.slow
@pytest.mark.parametrize("peer", ALL_PEERS)
def test_a_client_gets_all_that_it_publishes(start_nsqd: StartNsqd, peer: str) -> None:
    nsqd = start_nsqd(f"msg-timeout={TIMEOUT:g}s")
    what = plan()
    arrivals: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for body, attempts, seconds in run(peer, nsqd, what):
        arrivals[body].append((attempts, seconds))

    assert arrivals.keys() == set(what["expected"])
    for body, times in arrivals.items():
        expected = [1, 2] if body.startswith("requeue") else [1]
        assert [attempts for attempts, _ in times] == expected, body
    assert min(seconds for body in what["dpub"] for _, seconds in arrivals[body]) >= DELAY_MS / 1000

    channel = nsqd.channel(peer, "channel")
    assert channel["message_count"] == len(what["expected"])
    left = [channel[it] for it in ("depth", "in_flight_count", "deferred_count", "timeout_count", "requeue_count")]
    assert left == [0, 0, 0, 0, 100]


@pytest.mark.parametrize("peer", ALL_PEERS)
def test_what_a_handler_always_fails_at_is_buried_in_the_end(start_nsqd: StartNsqd, tmp_path: Path, peer: str) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[[policy]]\nmax_attempts = 5\nmax_in_flight = 3\n")
    nsqd = start_nsqd(f"policy-file={policy}")
    bodies = {"plain": [f"plain-{number}" for number in range(100)], "fails": [f"fails-{it}" for it in range(150)]}
    mixed = [body for pair in zip(bodies["plain"], bodies["fails"], strict=False) for body in pair]
    rest = bodies["fails"][100:]
    what = {"pub": mixed, "mpub": [rest], "dpub": [], "expected": mixed + rest, "most_attempts": 5}
    arrivals: dict[str, list[int]] = defaultdict(list)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run, peer, nsqd, what)
        while not running.done():
            channel = nsqd.channel(peer, "channel")
            assert channel is None or channel["in_flight_count"] <= channel["max_in_flight"] == 3
            time.sleep(0.03)  # leave the processor to the client and the broker
    for body, attempts, _ in running.result():
        arrivals[body].append(attempts)

    assert arrivals == {body: [1, 2, 3, 4, 5] if body.startswith("fails") else [1] for body in mixed + rest}
    buried = eventually(lambda: len(it := buried_on_disk(nsqd.data_path, peer, "channel")) == 150 and it)
    assert {(it.attempts, it.note.reason) for it in buried} == {(5, "5 attempts, the last one requeued")}
    channel = nsqd.channel(peer, "channel")
    assert [channel[it] for it in ("depth", "in_flight_count", "deferred_count", "requeue_count")] == [0, 0, 0, 750]


@pytest.mark.parametrize("peer", ALL_PEERS)
def test_headers_keys_and_ttl_of_others_are_nothing_to_a_client(start_nsqd: StartNsqd, peer: str) -> None:
    nsqd = start_nsqd()
    nsqd.post(f"/topic/create?topic={peer}")
    nsqd.post(f"/channel/create?topic={peer}&channel=channel")
    headed = publish_with_headers(nsqd, peer)
    own = [f"plain-{number}" for number in range(100)]
    arrivals: dict[str, list[int]] = defaultdict(list)
    for body, attempts, _ in run(peer, nsqd, {"pub": own, "mpub": [], "dpub": [], "expected": headed + own}):
        arrivals[body].append(attempts)

    assert arrivals == {body: [1, 2] if body.startswith("requeue") else [1] for body in headed + own}
    channel = nsqd.channel(peer, "channel")
    assert [channel[it] for it in ("depth", "in_flight_count", "deferred_count", "timeout_count")] == [0, 0, 0, 0]


def publish_with_headers(nsqd: Nsqd, topic: str) -> list[str]:
    """Publish in each way that is no NSQ client's. Return the bodies."""
    client = nsqd.connect()
    client.identify(feature_negotiation=True, extensions=["headers", "keys"])
    headers = encode_headers({"traceparent": b"00-1-2-01", "raw": bytes(range(256)), "nsq-ttl": b"600000"})
    bodies: list[str] = []
    for number in range(40):
        one, two, three, four, five = (f"{word}-headed-{number}" for word in ("plain", "requeue", "later", "a", "b"))
        bodies += [one, two, three, four, five]
        commands = (
            hpub(topic, headers, one.encode()),
            pub(topic, two.encode()),
            hdpub(topic, DELAY_MS, headers, three.encode()),
            hmpub(topic, [(headers, four.encode()), (NONE, five.encode())]),
        )
        for place, command in enumerate(commands):
            client.send(command.replace(b"\n", b" key-%d-%d\n" % (number, place), 1))
            assert client.response() == b"OK"
    return bodies


def test_go_nsq_backs_off_and_gets_what_failed_again(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    bodies = [f"backoff-{number}" for number in range(3)] + [f"plain-{number}" for number in range(30)]
    host, port = nsqd.tcp
    what = {"host": host, "port": port, "topic": "t", "pub": bodies, "expected": bodies}
    done = subprocess.run(
        command("go-nsq"), input=json.dumps(what), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    arrivals: dict[str, list[int]] = defaultdict(list)
    for body, attempts, _ in json.loads(done.stdout):
        arrivals[body].append(attempts)
    assert arrivals == {body: [1, 2, 3] if body.startswith("backoff") else [1] for body in bodies}
    assert "backing off for" in done.stderr
    channel = nsqd.channel("t", "channel")
    assert (channel["requeue_count"], channel["depth"], channel["in_flight_count"]) == (6, 0, 0)


def test_the_lock_file_names_no_place_to_download_from() -> None:
    lock = (PEERS / "package-lock.json").read_text()
    assert "://" not in lock
