"""Consuming over HTTP between real processes: pollers that are killed or never answer, crashes, bounds, rights, ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsqcommon.wire.commands import mpub, sub
from tests.nsqd.whole.test_rights import allow
from tests.support.auth_server import AuthServer, granting
from tests.support.brokers import StartNsqd
from tests.support.client import TIMEOUT, Refused
from tests.support.http_consumer import HttpConsumer, HttpRefused
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module

PAGE = "http://127.0.0.1:8000"


def fill(nsqd: Nsqd, topic: str, count: int, channel: str = "c") -> set[bytes]:
    """Publish this many messages to a new channel and return their bodies."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel={channel}")
    bodies = [b"%d" % number for number in range(count)]
    with nsqd.connect() as client:
        for start in range(0, count, 500):
            assert client.ask(mpub(topic, bodies[start : start + 500])) == b"OK"
    return set(bodies)


def taken_by(consumer: HttpConsumer, most: int, wait: str = "0") -> int | None:
    """Return how many messages it got; None: it was refused, because a bound is reached."""
    try:
        return len(consumer.take(most, wait=wait))
    except HttpRefused as error:
        return None if error.status == 429 else -1


def test_what_a_killed_poller_has_comes_back_after_its_lease_and_nothing_is_lost(nsqd: Nsqd, topic: str) -> None:
    """One poller takes in a process of its own, which is killed with its messages unanswered."""
    bodies = fill(nsqd, topic, 400)
    host, port = nsqd.http_address
    program = (
        "import sys, time, urllib.request\n"
        f"url = 'http://{host}:{port}/sub?topic={topic}&channel=c&max=150&lease=2s'\n"
        "print(urllib.request.urlopen(url, b'').read().count(b'\\n'), flush=True)\n"
        "time.sleep(60)\n"
    )
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as poller:
        assert poller.stdout is not None
        assert poller.stdout.readline() == b"150\n"
        poller.kill()
    got: dict[bytes, int] = {}
    with HttpConsumer(nsqd.http_address, topic) as consumer:
        while len(got) < 400:
            assert time.monotonic() < began + 2 * TIMEOUT, f"{len(got)} of 400"
            messages = consumer.take(100, wait="1s")
            assert consumer.finish(message.id for message in messages) == []
            got.update((message.body, message.attempts) for message in messages)
    assert got.keys() == bodies
    assert sum(attempts == 2 for attempts in got.values()) == 150
    assert nsqd.channel(topic)["depth"] == nsqd.channel(topic)["in_flight_count"] == 0


def test_a_poller_that_leaves_while_it_waits_takes_nothing_with_it(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 0)
    with HttpConsumer(nsqd.http_address, topic) as poller:
        poller.ask("sub", "max=10&wait=60s")
        eventually(lambda: nsqd.channel(topic)["clients"][0]["ready_count"] == 10)
    eventually(lambda: nsqd.channel(topic)["clients"][0]["ready_count"] == 0)
    nsqd.post(f"/pub?topic={topic}", b"x")
    client = nsqd.connect()
    client.subscribe(topic, ready=1)
    assert client.message().attempts == 1


def test_pollers_that_never_answer_are_bounded_and_leave_others_alone(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-holder-leases=1000", "max-channel-leases=5000", "max-waiting-subs=50")
    fill(nsqd, "t", 5000)
    taken, refused = 0, 0
    with ExitStack() as pollers:
        for _ in range(200):
            poller = pollers.enter_context(HttpConsumer(nsqd.http_address, "t"))
            if (got := taken_by(poller, 100)) is None:
                refused += 1
            else:
                taken += got
        assert (taken, refused) == (1000, 190)
        with nsqd.connect() as consumer:
            consumer.subscribe("t", ready=500)
            for _ in range(4000):
                consumer.finish(consumer.message())
        assert nsqd.http("GET", "/ping").body == b"OK"
    # The consumer's last FINs may still be on their way.
    eventually(lambda: nsqd.channel("t")["in_flight_count"] == 1000)


def test_polls_that_wait_by_the_hundred_are_bounded_and_leave_others_alone(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-waiting-subs=50")
    with ExitStack() as waiting:
        pollers = [waiting.enter_context(HttpConsumer(nsqd.http_address, f"t{it % 7}")) for it in range(200)]
        for poller in pollers:
            poller.ask("sub", "max=1000&wait=60s")
        eventually(lambda: sum(poller.is_answered() for poller in pollers) >= 150)
        with nsqd.connect() as consumer:
            consumer.subscribe("t1", "other", ready=1)
            for number in range(100):
                nsqd.post("/pub?topic=t1", b"%d" % number)
                consumer.finish(consumer.message())
        assert sum(poller.is_answered() for poller in pollers) <= 160  # polls for t1 have got messages


def test_leases_of_a_channel_have_a_bound_of_their_own(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-channel-leases=30")
    fill(nsqd, "t", 100)
    with HttpConsumer(nsqd.http_address, "t") as consumer:
        assert len(consumer.take(100)) == 30
        with pytest.raises(HttpRefused):
            consumer.take()
    with HttpConsumer(nsqd.http_address, "t", "other") as other:
        other.take()


def test_no_more_requests_wait_than_may(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-waiting-subs=2")
    fill(nsqd, "t", 0)
    with ExitStack() as waiting:
        for _ in range(2):
            waiting.enter_context(HttpConsumer(nsqd.http_address, "t")).ask("sub", "wait=60s")
        with HttpConsumer(nsqd.http_address, "t") as third:
            eventually(lambda: taken_by(third, 1, wait="10ms") is None)
            assert third.take() == []  # who does not want to wait may ask


def test_after_kill_9_leases_come_again_and_answered_finishes_hold(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        bodies = fill(nsqd, "t", 300)
        with HttpConsumer(nsqd.http_address, "t") as consumer:
            messages = consumer.take(200, wait="1s")
            done = messages[:100]
            assert consumer.finish(message.id for message in done) == []
            nsqd.kill()
        nsqd.start()
        with HttpConsumer(nsqd.http_address, "t") as consumer:
            wanted = bodies - {message.body for message in done}
            again: list[bytes] = []
            while len(again) < len(wanted):
                taken = consumer.take(1000, wait="20s")
                assert taken, f"{len(again)} of {len(wanted)}"
                again += [message.body for message in taken]
            assert consumer.take() == []
        assert sorted(again) == sorted(wanted)


# Streams


def events(sock: socket.socket, data: bytearray, count: int) -> list[dict[str, object]]:
    """Return the next events, with their ids."""
    sock.settimeout(TIMEOUT)
    while data.count(b"\ndata: ") < count or not data.endswith(b"\r\n"):
        piece = sock.recv(1 << 16)
        assert piece, bytes(data)
        data += piece
    found = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")]
    data.clear()
    return found


def stream(nsqd: Nsqd, topic: str, arguments: str = "", **headers: str) -> socket.socket:
    sock = socket.create_connection(nsqd.http_address, timeout=TIMEOUT)
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    target = f"/sub?topic={topic}&channel=c{arguments}"
    sock.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n{more}\r\n".encode())
    return sock


def test_a_stream_goes_on_after_the_last_event_that_has_arrived(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 6)
    with stream(nsqd, topic, "&max=4") as first:
        got = events(first, bytearray(), 4)
    with stream(nsqd, topic, "&max=4", Last_Event_ID=str(got[1]["id"])) as second:
        again = events(second, bytearray(), 4)
    assert [it["attempts"] for it in again] == [1, 1, 1, 1]
    assert {it["body"] for it in again} == {"2", "3", "4", "5"}
    eventually(lambda: nsqd.channel(topic)["in_flight_count"] == 4)
    assert nsqd.channel(topic)["depth"] == 0


def test_a_stream_whose_reader_has_gone_gets_nothing_more(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 0)
    with stream(nsqd, topic):
        eventually(lambda: nsqd.channel(topic)["clients"][0]["ready_count"] == 100)
    eventually(lambda: nsqd.channel(topic)["clients"][0]["ready_count"] == 0)
    nsqd.post(f"/pub?topic={topic}", b"x")
    assert nsqd.channel(topic)["depth"] == 1


# Rights, AUTH, pages of other sites


def test_consuming_needs_its_role(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    file = tmp_path / "rights.toml"
    file.write_text(allow("worker", "consume", topics=("t",)) + allow("reader", "read") + allow("boss", "admin"))
    nsqd = start_nsqd(f"rights-file={file}")
    publish = nsqd.http("POST", "/pub?topic=t", b"x", headers={"Authorization": "Bearer boss"})
    assert publish.status == 200
    for who, status in (("", 401), ("nobody", 401), ("worker", 200), ("reader", 200), ("boss", 200)):
        headers = {"Authorization": f"Bearer {who}"} if who else {}
        assert nsqd.http("POST", "/sub?topic=t&channel=c", headers=headers).status == status, who
    worker = {"Authorization": "Bearer worker"}
    assert nsqd.http("POST", "/sub?topic=u&channel=c", headers=worker).status == 403
    assert nsqd.http("GET", "/stats", headers=worker).status == 403
    client = nsqd.connect()
    client.identify()
    client.ask(b"AUTH\n" + (6).to_bytes(4, "big") + b"worker")
    assert client.ask(sub("t", "c")) == b"OK"


def test_a_lease_belongs_to_the_name_of_its_token(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    file = tmp_path / "rights.toml"
    file.write_text(allow("one", "consume", "publish") + allow("two", "consume"))
    nsqd = start_nsqd(f"rights-file={file}")
    address = nsqd.http_address
    with HttpConsumer(address, "t", token="one") as one, HttpConsumer(address, "t", token="two") as two:
        one.take()
        nsqd.http("POST", "/pub?topic=t", b"x", headers={"Authorization": "Bearer one"})
        (message,) = one.take(wait="1s")
        (error,) = two.finish([message.id])
        assert error.endswith("client does not own message")
        assert one.finish([message.id]) == []


def test_where_clients_have_to_auth_http_is_no_way_around(start_nsqd: StartNsqd) -> None:
    entry = {"topic": "^t$", "channels": ["^c$"], "permissions": ["subscribe"]}
    with AuthServer() as server:
        server.answer = lambda asked: granting(entry, identity="me")
        nsqd = start_nsqd(f"auth-http-address={server.address}")
        statuses = [
            nsqd.http("POST", f"/sub?topic={topic}&channel=c", headers=headers).status
            for topic, headers in (
                ("t", {}),
                ("t", {"Authorization": "Bearer s"}),
                ("u", {"Authorization": "Bearer s"}),
            )
        ]
        assert statuses == [401, 200, 403]
        (client,) = nsqd.channel("t")["clients"]
        assert (client["version"], client["client_id"], client["auth_identity"]) == ("HTTP", "me", "me")


def test_a_named_site_may_consume_and_nothing_else(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(f"http-cors-origin={PAGE}")
    fill(nsqd, "t", 1)
    browser = {"user-agent": "Mozilla/5.0", "sec-fetch-site": "same-site"}
    ours, other = {**browser, "origin": PAGE}, {**browser, "origin": "http://evil.example"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    preflight = nsqd.http("OPTIONS", "/fin?topic=t&channel=c", headers={**ours, **asked})
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "access-control-allow-origin" not in nsqd.http("OPTIONS", "/fin", headers={**other, **asked}).headers
    assert nsqd.http("POST", "/sub?topic=t&channel=c", headers=other).status == 403
    assert nsqd.http("GET", "/sub?topic=t&channel=c", headers={**other, "accept": "text/event-stream"}).status == 403
    assert nsqd.channel("t")["depth"] == 1
    taken = nsqd.http("POST", "/sub?topic=t&channel=c", headers=ours)
    assert (taken.status, taken.headers["access-control-allow-origin"]) == (200, PAGE)
    for path in ("/topic/delete?topic=t", "/channel/empty?topic=t&channel=c", "/drain"):
        assert nsqd.http("POST", path, headers=ours).status == 403


def test_nsqadmin_shows_it_as_a_consumer_marked_http(nsqd: Nsqd, topic: str) -> None:
    needs_module("starlette")
    needs_module("jinja2")
    fill(nsqd, topic, 3)
    with HttpConsumer(nsqd.http_address, topic) as consumer:
        consumer.take(2)
        with Nsqadmin(f"nsqd-http-address=127.0.0.1:{nsqd.http_address[1]}", "sample-interval=200ms") as admin:
            path = f"/topics/{topic}/c?tab=consumers&fresh=1"
            eventually(lambda: b">HTTP</span>" in admin.http("GET", path).body)


# Ends


def test_a_drain_delivers_what_waits_to_who_consumes_over_http(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("drain-deadline=20s")
    fill(nsqd, "t", 300)
    with HttpConsumer(nsqd.http_address, "t") as consumer:
        messages = consumer.take(50)
        nsqd.post("/drain")
        count = len(messages)
        while count < 300:
            consumer.finish(message.id for message in messages)
            messages = consumer.take(100, wait="1s")
            count += len(messages)
        assert nsqd.http("GET", "/readyz").status == 503  # it waits for the leases
        consumer.finish(message.id for message in messages)
    assert nsqd.wait() == 0
    assert "drained" in nsqd.log


def test_a_stop_answers_polls_and_ends_streams(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("drain-timeout=120s")  # longer than a stop may take here
    fill(nsqd, "t", 0)
    with HttpConsumer(nsqd.http_address, "t") as poller, stream(nsqd, "t") as reader:
        poller.ask("sub", "wait=60s")
        eventually(lambda: sum(it["ready_count"] for it in nsqd.channel("t")["clients"]) == 101)
        assert nsqd.stop() == 0
        reader.settimeout(TIMEOUT)
        data = b""
        while piece := reader.recv(1 << 16):
            data += piece
        assert data.endswith(b"0\r\n\r\n")


def test_a_channel_that_is_deleted_ends_its_polls(nsqd: Nsqd, topic: str) -> None:
    fill(nsqd, topic, 0)
    with HttpConsumer(nsqd.http_address, topic) as poller:
        poller.ask("sub", "wait=60s")
        eventually(lambda: nsqd.channel(topic)["clients"][0]["ready_count"] == 1)
        nsqd.post(f"/channel/delete?topic={topic}&channel=c")
        assert poller.answered() == (404, b'{"message":"CHANNEL_NOT_FOUND"}')


def test_tcp_and_http_consumers_share_a_limit_of_consumers(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-channel-consumers=1")
    fill(nsqd, "t", 0)
    with HttpConsumer(nsqd.http_address, "t") as consumer:
        consumer.take()
        client = nsqd.connect()
        with pytest.raises(Refused, match="exceeds limit of 1"):
            client.ask(sub("t", "c"))
        nsqd.connect().subscribe("t", "other")
    with HttpConsumer(nsqd.http_address, "t", "other") as consumer, pytest.raises(HttpRefused):
        consumer.take()
