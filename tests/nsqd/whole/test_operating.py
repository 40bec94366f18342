"""What operators do with a running nsqd: drain it, look inside, read its figures."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nsqcommon.wire import commands
from tests.support.brokers import StartNsqd
from tests.support.certificates import make_certificates
from tests.support.client import TIMEOUT, Disconnected, Refused
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module, run_to_end

DEADLINE = 20.0
COUNTERS = ("message_count", "message_bytes", "requeue_count", "timeout_count", "mem.gc_runs")
STATSD = {
    name: "c" if name.endswith(COUNTERS) else "g"
    for name in [
        *(f"topic.topic.{it}" for it in ("message_count", "message_bytes", "depth", "backend_depth")),
        "topic.topic.e2e_processing_latency_50",
        *(f"topic.topic.channel.c.{it}" for it in ("message_count", "depth", "backend_depth", "in_flight_count")),
        *(f"topic.topic.channel.c.{it}" for it in ("deferred_count", "requeue_count", "timeout_count", "clients")),
        "topic.topic.channel.c.e2e_processing_latency_50",
        *(f"mem.heap_{it}" for it in ("objects", "idle_bytes", "in_use_bytes", "released_bytes")),
        *(f"mem.gc_pause_usec_{it}" for it in ("100", "99", "95")),
        "mem.next_gc_bytes",
        "mem.gc_runs",
    ]
}


class Publisher(threading.Thread):
    """Publishes until it is refused, and always more than consumers handle meanwhile, so that a backlog grows."""

    def __init__(self, nsqd: Nsqd, number: int) -> None:
        super().__init__()
        self._client = nsqd.connect()
        self._number = number
        self.acknowledged: set[bytes] = set()
        self.refusal = b""

    def run(self) -> None:
        with self._client as client:
            for count in range(1_000_000):
                bodies = [b"%d-%d-%d" % (self._number, count, part) for part in range(1 + count % 20)]
                client.send(commands.pub("topic", bodies[0]) if len(bodies) == 1 else commands.mpub("topic", bodies))
                try:
                    answer = client.response()
                except Refused as refused:
                    self.refusal = str(refused).encode()
                    return
                assert answer == b"OK"
                self.acknowledged.update(bodies)


class Consumer(threading.Thread):
    """Finishes what it gets until the broker closes the connection."""

    def __init__(self, nsqd: Nsqd) -> None:
        super().__init__()
        self._client = nsqd.connect()
        self._client.subscribe("topic", ready=200)
        self.got: list[bytes] = []

    def run(self) -> None:
        with self._client as client:
            try:
                while True:
                    message = client.message(DEADLINE)
                    self.got.append(bytes(message.body))
                    client.finish(message)
            except (Disconnected, OSError):
                pass


@pytest.mark.parametrize("asked_by", ["signal", "http"])
def test_a_drain_under_load_loses_nothing_and_ends_in_time(start_nsqd: StartNsqd, asked_by: str) -> None:
    nsqd = start_nsqd(f"drain-deadline={DEADLINE:.0f}s")
    consumers = [Consumer(nsqd) for _ in range(2)]
    publishers = [Publisher(nsqd, number) for number in range(4)]
    for thread in (*consumers, *publishers):
        thread.start()
    eventually(lambda: all(len(consumer.got) > 100 for consumer in consumers))
    started = time.monotonic()
    if asked_by == "signal":
        nsqd.send_signal(signal.SIGUSR1)
    else:
        nsqd.post("/drain")
    assert nsqd.wait() == 0
    assert time.monotonic() - started < DEADLINE
    for thread in (*consumers, *publishers):
        thread.join(DEADLINE)
    refusals = {publisher.refusal for publisher in publishers}
    assert refusals <= {b"E_PUB_FAILED PUB failed draining", b"E_MPUB_FAILED MPUB failed draining"}
    acknowledged = set().union(*(publisher.acknowledged for publisher in publishers))
    got = [body for consumer in consumers for body in consumer.got]
    assert acknowledged
    assert set(got) == acknowledged
    assert len(got) == len(acknowledged)
    assert "NSQ: drained" in nsqd.log


def test_what_nobody_consumes_is_there_after_the_drain(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.post("/topic/create?topic=topic")
    nsqd.post("/channel/create?topic=topic&channel=c")
    with nsqd.connect() as client:
        client.publish("topic", b"stays")
        assert nsqd.http("GET", "/readyz").status == 200
    nsqd.post("/drain")
    assert nsqd.wait() == 0
    nsqd.start()
    with nsqd.connect() as client:
        client.subscribe("topic", ready=1)
        assert client.message().body == b"stays"


def test_a_node_that_has_drained_can_be_read_for_as_long_as_it_was_told(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("drain-stay=1s")
    nsqd.post("/pub?topic=topic", b"a")
    began = time.monotonic()
    nsqd.send_signal(signal.SIGUSR1)
    eventually(lambda: "NSQ: drained" in nsqd.log)
    assert eventually(lambda: nsqd.http("GET", "/topic/log?topic=topic").json.get("closed"))
    assert nsqd.http("POST", "/pub?topic=topic", b"b").status == 503
    assert nsqd.wait() == 0
    assert time.monotonic() - began >= 1.0


def test_the_service_manager_hears_of_start_and_stop(
    start_nsqd: StartNsqd, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = str(tmp_path_factory.mktemp("n") / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(TIMEOUT)
        with Nsqd(tmp_path_factory.mktemp("data"), environ={"NOTIFY_SOCKET": path}) as nsqd:
            assert manager.recv(100) == b"READY=1"
            assert nsqd.stop() == 0
            assert manager.recv(100) == b"STOPPING=1"


def test_what_is_asked_over_https_is_answered_although_the_broker_stops(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    nsqd = start_nsqd(f"tls-cert={made.certificate}", f"tls-key={made.key}", "https-address=127.0.0.1:0")
    context = ssl.create_default_context(cafile=str(made.authority))
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(nsqd.http, "GET", "/debug/pprof/profile?seconds=1", tls=context, timeout=30)
        assert eventually(lambda: b"sampled_stacks" in nsqd.http("GET", "/debug/pprof/threadcreate").body)
        assert nsqd.stop() == 0
        answer = asked.result(30)
    assert (answer.status, b"trio" in answer.body) == (200, True)


def test_the_inside_of_a_running_broker(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    tree = nsqd.http("GET", "/debug/pprof/goroutine?debug=1").body.decode()
    assert "Poller.run" in tree
    assert "nsqd.timers.expire_messages" in tree
    profile = nsqd.http("GET", "/debug/pprof/profile?seconds=0.5")
    assert (profile.status, profile.headers["content-type"]) == (200, "application/octet-stream")
    assert b"trio" in profile.body


def test_statsd_gets_every_figure(start_nsqd: StartNsqd) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 0))
        sink.settimeout(TIMEOUT)
        nsqd = start_nsqd(
            f"statsd-address=127.0.0.1:{sink.getsockname()[1]}",
            "statsd-interval=1s",
            "statsd-prefix=a.%s",
            "e2e-processing-latency-percentile=0.5",
        )
        with nsqd.connect() as client:
            client.subscribe("topic", ready=1)
            client.publish("topic", b"hello")
            client.finish(client.message())
            told: dict[str, str] = {}
            until = time.monotonic() + DEADLINE
            while not STATSD.keys() <= told.keys() and time.monotonic() < until:
                packet = sink.recv(65536)
                assert len(packet) <= 508
                for line in packet.decode().splitlines():
                    name, _, figure = line.partition(":")
                    told[name.removeprefix(f"a.{_spelled(nsqd)}.")] = figure
    assert {name: figure.rpartition("|")[2] for name, figure in told.items()} == STATSD
    assert told["topic.topic.message_count"] in ("1|c", "0|c")
    assert told["topic.topic.channel.c.clients"] == "1|g"


def _spelled(nsqd: Nsqd) -> str:
    """Return the node's name and HTTP port as statsd's prefix has them."""
    address = nsqd.http("GET", "/info").json["broadcast_address"]
    return f"{address}:{nsqd.http_address[1]}".replace(".", "_").replace(":", "_")


def test_a_client_is_not_lost_between_refusal_and_end(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("drain-deadline=1s")
    with nsqd.connect() as slow, nsqd.connect() as publisher:
        slow.subscribe("topic", ready=1)
        publisher.publish("topic", b"slow")
        assert slow.message().body == b"slow"
        nsqd.post("/drain")
        assert nsqd.wait() == 0  # the drain's deadline has come
    assert "messages for the next start" in nsqd.log
    nsqd.start()
    with nsqd.connect() as client:
        client.subscribe("topic", ready=1)
        assert client.message().body == b"slow"


# Passwords


@pytest.mark.parametrize("address", ["http://user:{}@127.0.0.1:1/auth", "user:{}@127.0.0.1:1"])
def test_a_password_in_a_url_of_nsqd_is_shown_nowhere(start_nsqd: StartNsqd, address: str) -> None:
    nsqd = start_nsqd(f"auth-http-address={address.format('hunter2')}", "log-level=debug")
    assert nsqd.http("GET", "/config/auth_http_addresses").json == [address.format("xxxxx")]
    assert b"user:xxxxx@127.0.0.1:1" in nsqd.http("GET", "/debug/pprof/cmdline").body
    shown = [nsqd.http("GET", path).body for path in ("/info", "/stats", "/metrics", "/debug/pprof/goroutine")]
    with nsqd.connect() as client, pytest.raises(Refused):
        client.ask(commands.auth(b"secret"))
    assert eventually(lambda: "failed to query auth server" in nsqd.log)
    assert "hunter2" not in nsqd.log + b"".join(shown).decode()


def test_a_password_in_a_url_of_nsqadmin_is_shown_nowhere() -> None:
    needs_module("starlette")
    urls = ("graphite-url=http://me:hunter2@127.0.0.1:1", "notification-http-endpoint=http://me:hunter2@127.0.0.1:1")
    with Nsqadmin("lookupd-http-address=127.0.0.1:1", *urls) as admin:
        assert admin.http("GET", "/config/graphite_url").body == b"http://me:xxxxx@127.0.0.1:1"
        shown = [
            admin.http("GET", "/config/notification_http_endpoint").body,
            admin.http("GET", "/").body,
            admin.http("GET", "/api/graphite?metric=rate&target=x").body,
            admin.json("POST", "/api/topics", {"topic": "t"}).body,
        ]
        assert eventually(lambda: "GRAPHITE: http://me:xxxxx@127.0.0.1:1/render" in admin.log)
    assert "hunter2" not in admin.log + b"".join(shown).decode()


def test_a_start_that_fails_shows_no_password() -> None:
    needs_module("starlette")
    done = run_to_end(
        "--graphite-url=ftp://me:hunter2@h", "--proxy-graphite", "--nsqd-http-address=h:1", program="nsqadmin"
    )
    assert done.returncode == 1
    assert "failed to parse --graphite-url (ftp://me:xxxxx@h)" in done.stderr
