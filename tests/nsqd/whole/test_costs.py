"""What many connections, topics and deferred messages cost, with generous bounds. `bench` has exact figures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from nsqcommon.wire.commands import dpub, pub, sub
from tests.support.brokers import StartNsqd
from tests.support.client import Client
from tests.support.lengths import sized
from tests.support.open_files import many_files
from tests.support.process import Nsqd, eventually

pytestmark = pytest.mark.slow

MEGABYTE = 1 << 20
OK_FRAME_SIZE = 10
CONNECTIONS = sized(short=1_000, long=5_000)
DEFERRED = sized(short=50_000, long=1_000_000)
TOPICS = sized(short=1_000, long=2_000)


@pytest.fixture
def _many_files() -> Iterator[None]:
    with many_files():
        yield


def cpu_while_idle(nsqd: Nsqd, seconds: float) -> float:
    before = nsqd.cpu_seconds
    assert before > 0, "the system does not tell"
    time.sleep(seconds)  # the test measures an idle process
    return nsqd.cpu_seconds - before


@pytest.mark.usefixtures("_many_files")
def test_thousands_of_idle_connections(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    before = nsqd.resident_bytes
    with ExitStack() as clients:
        for _ in range(CONNECTIONS):
            clients.enter_context(Client(nsqd.tcp)).send(sub("t", "c"))
        eventually(lambda: nsqd.channel("t")["client_count"] == CONNECTIONS, timeout=60)
        assert nsqd.resident_bytes - before < CONNECTIONS * 40_000
        eventually(lambda: cpu_while_idle(nsqd, 2) < 0.1, timeout=60)  # until everything is synced
        clients.close()
    assert nsqd.http("GET", "/ping").body == b"OK"


def test_thousands_of_idle_topics(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    client = nsqd.connect()
    for number in range(TOPICS):
        client.send(pub(f"t-{number}", b"x"))
    client.raw(OK_FRAME_SIZE * TOPICS, timeout=60)
    with ExitStack() as consumers:
        for number in range(TOPICS):
            consumer = consumers.enter_context(Client(nsqd.tcp))
            consumer.send(sub(f"t-{number}", "c"))
            consumer.raw(OK_FRAME_SIZE)
    assert len(nsqd.stats()["topics"]) == TOPICS
    assert nsqd.resident_bytes < TOPICS * 150_000
    eventually(lambda: cpu_while_idle(nsqd, 2.5) == 0, timeout=90)  # until everything is synced
    assert cpu_while_idle(nsqd, 3) <= 0.03


def test_a_crowd_of_deferred_messages(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    client = nsqd.connect()
    client.subscribe("t")
    before = nsqd.resident_bytes
    many = dpub("t", 3_600_000, b"x" * 50) * 2000
    for _ in range(DEFERRED // 2000):
        client.send(many)
        client.raw(OK_FRAME_SIZE * 2000, timeout=60)
    assert nsqd.channel("t")["deferred_count"] == DEFERRED
    grown = nsqd.resident_bytes - before
    print(f"{grown / DEFERRED:.0f} bytes each")
    assert grown < DEFERRED * 350
