"""Storms of names: new topics at nsqd, registrations at nsqlookupd. Other clients are served, and little work remains.

`python -m bench attack --only topics` has the figures for 32,000 topics.
"""

from __future__ import annotations

import http.client
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

import pytest

from nsqcommon.wire.commands import pub
from nsqcommon.wire.lookup import MAGIC, encode_command, identify_body
from tests.support.brokers import StartNsqd
from tests.support.client import open_socket
from tests.support.process import Daemon, Nsqd, Nsqlookupd, eventually

pytestmark = pytest.mark.slow

TOPICS: Final = 3000
WINDOW: Final = 64  # publishes that are not answered yet
OK_FRAME: Final = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
LIMIT: Final = 60.0  # seconds
LONGEST: Final = 0.1  # seconds of processor time for the median of other clients; usual: less than 0.01
IDLE: Final = 0.03  # share of a core
STOP: Final = 6.0  # seconds
MOST_WORK: Final = 0.25  # seconds of processor time before an answer; without slices it was 0.5


class Others(threading.Thread):
    """Other clients, which make small requests again and again, and record how long each took."""

    def __init__(self, ask: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.times: list[float] = []
        self._ask = ask
        self._clock = clock
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.wait(0.002):
            began = self._clock()
            self._ask()
            self.times.append(self._clock() - began)

    def __enter__(self) -> Others:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.join()

    def share(self, share: float) -> float:
        return sorted(self.times)[int(share * (len(self.times) - 1))]


def make_topics(nsqd: Nsqd, count: int) -> None:
    producer = nsqd.connect()
    for start in range(0, count, WINDOW):
        some = range(start, min(count, start + WINDOW))
        producer.send(*(pub(f"storm-{number}", b"x") for number in some))
        assert producer.raw(len(OK_FRAME) * len(some), timeout=LIMIT) == OK_FRAME * len(some)


def test_a_storm_of_topics_leaves_others_their_turns_and_ends_soon(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    consumer, publisher = nsqd.connect(), nsqd.connect()
    consumer.subscribe("other", ready=1)

    def pass_one() -> None:
        publisher.publish("other", b"x")
        consumer.finish(consumer.message(timeout=LIMIT))

    with Others(pass_one, lambda: nsqd.cpu_seconds) as others:
        make_topics(nsqd, TOPICS)
    print(f"{TOPICS} topics: others p50 {others.share(0.5) * 1000:.1f} ms, p99 {others.share(0.99) * 1000:.1f} ms")
    assert others.share(0.5) < LONGEST
    assert eventually(lambda: work_in_a_second(nsqd) < IDLE, timeout=LIMIT)
    began = time.monotonic()
    assert nsqd.stop() == 0
    stopping = time.monotonic() - began
    print(f"stopped in {stopping:.1f} s")
    assert stopping < STOP
    nsqd.start()
    assert len(nsqd.stats()["topics"]) == TOPICS + 1


def test_one_packet_with_many_new_topics_is_not_one_turn(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    with nsqd.connect() as storm, nsqd.connect() as other:
        other.subscribe("other", ready=1)
        nsqd.send_signal(signal.SIGSTOP)
        try:  # so that nsqd has both to read when it goes on, however busy the machine is
            storm.send(*(pub(f"storm-{number}", b"x") for number in range(1000)))
            other.send(pub("other", b"y"))
        finally:
            nsqd.send_signal(signal.SIGCONT)
        assert storm.raw(len(OK_FRAME) * 1000, timeout=LIMIT) == OK_FRAME * 1000
        assert nsqd.stats()["health"] == "OK"
        assert other.response() == b"OK"
        served = other.message().timestamp
        storm.subscribe("storm-999", ready=1)
        assert served < storm.message().timestamp  # the other client was served before all topics existed


def work_in_a_second(daemon: Daemon) -> float:
    before = daemon.cpu_seconds
    time.sleep(1)  # the test measures an idle process
    return daemon.cpu_seconds - before


def test_a_peer_that_leaves_with_very_many_registrations_stops_nobody() -> None:
    body = identify_body(
        broadcast_address="host",
        hostname="host",
        http_port=4151,
        tcp_port=4150,
        topology_region="",
        topology_zone="",
        version="1.3.0",
    )
    count = 50_000
    with Nsqlookupd() as lookupd:
        connection = http.client.HTTPConnection(*lookupd.http_address, timeout=LIMIT)
        with open_socket(lookupd.tcp) as peer, closing(connection):
            peer.sendall(MAGIC + encode_command("IDENTIFY", body=body))
            for start in range(0, count, 500):
                peer.sendall(b"".join(encode_command("REGISTER", f"t{start + at}") for at in range(500)))
                answers = 6 * 500
                while answers > 0:
                    answers -= len(peer.recv(1 << 16))
            eventually(lambda: len(lookupd.get("/topics")["topics"]) == count, timeout=LIMIT)

            def ping() -> None:
                connection.request("GET", "/ping")
                assert connection.getresponse().read() == b"OK"

            # Processor time, so that it does not matter how busy the machine is.
            with Others(ping, lambda: lookupd.cpu_seconds) as others:
                for path in ("/nodes", "/topics", "/metrics"):
                    assert lookupd.http("GET", path, timeout=LIMIT).status == 200
                peer.close()
                eventually(lambda: lookupd.get("/nodes")["producers"] == [], timeout=LIMIT)
                for number in range(0, count, 500):
                    assert lookupd.get(f"/lookup?topic=t{number}")["producers"] == []
        print(f"most work before an answer: {others.share(1) * 1000:.0f} ms")
        assert others.share(1) < MOST_WORK
        assert "Traceback" not in lookupd.log
