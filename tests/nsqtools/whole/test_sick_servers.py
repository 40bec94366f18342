"""Tools with servers that accept slowly, hang or break off: they go on as far as possible, and stop in time."""

from __future__ import annotations

import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.brokers import StartNsqd
from tests.support.http_sink import HttpSink
from tests.support.lateness import lifetime_of
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module
from tests.support.tools import LIMIT, Tool, address

# Seconds from SIGTERM to the end; `docker stop` waits as long. When others keep the machine busy, the time for which a tool
# has no processor doesn't count.
STOPS_IN: Final = 10.0


def prepare(nsqd: Nsqd, topic: str, count: int) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    nsqd.connect().publish(topic, *(b"%d" % number for number in range(count)))


def to_http(nsqd: Nsqd, topic: str, url: str) -> Tool:
    place = f"--nsqd-tcp-address={address(nsqd.tcp)}"
    return Tool("nsq_to_http", f"--topic={topic}", "--channel=c", place, f"--post={url}")


def stops_in_time(tool: Tool) -> int:
    """Stop the tool, print how long that took, and return its exit status."""
    with lifetime_of(tool.process.pid) as life:
        status = tool.stop(signal.SIGTERM)
    print(f"stopped in {life.seconds:.2f} s")
    assert life.seconds < STOPS_IN, tool.log
    return status


@pytest.mark.parametrize("run", range(4))
def test_a_short_accept_queue_holds_nothing_up(nsqd: Nsqd, topic: str, run: int) -> None:
    prepare(nsqd, topic, 100)
    with HttpSink(backlog=5) as sink:
        began = time.monotonic()
        with to_http(nsqd, topic, sink.url) as tool:
            eventually(lambda: len(set(sink.bodies)) == 100, timeout=LIMIT)
            print(f"{time.monotonic() - began:.2f} s, {len(sink.requests)} requests, {sink.connections} connections")
            assert stops_in_time(tool) == 0


@contextmanager
def never_accepts() -> Iterator[str]:
    """Yield a port whose queue takes two connections, after which the kernel drops what comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def accepts_and(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept connections, treat them with the function, and keep each until the end."""
    accepted: list[socket.socket] = []

    def accept() -> None:
        try:
            while True:
                accepted.append(server.accept()[0])
                serve(accepted[-1])
        except OSError:  # the test has closed the server
            pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            acceptor.join(LIMIT)
            for connection in accepted:
                connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextmanager
def never_answers() -> Iterator[str]:
    with accepts_and(lambda connection: None) as url:
        yield url


@contextmanager
def resets() -> Iterator[str]:
    with accepts_and(reset) as url:
        yield url


@pytest.mark.parametrize("sick", [never_accepts, never_answers, resets])
def test_nsq_to_http_stops_in_time_and_loses_nothing(
    nsqd: Nsqd, topic: str, sick: Callable[[], AbstractContextManager[str]]
) -> None:
    prepare(nsqd, topic, 100)
    with sick() as url, to_http(nsqd, topic, url) as tool:
        eventually(lambda: nsqd.channel(topic)["in_flight_count"] or nsqd.channel(topic)["requeue_count"])
        assert stops_in_time(tool) == 0
        assert "Traceback" not in tool.log
    found = nsqd.channel(topic)
    assert found["depth"] + found["in_flight_count"] + found["deferred_count"] == 100


@contextmanager
def stopped(node: Nsqd) -> Iterator[None]:
    node.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        node.send_signal(signal.SIGCONT)


def test_nsq_to_nsq_stops_in_time_when_the_destination_hangs(nsqd: Nsqd, topic: str, start_nsqd: StartNsqd) -> None:
    elsewhere = start_nsqd()
    prepare(nsqd, topic, 1)
    source, destination = address(nsqd.tcp), address(elsewhere.tcp)
    arguments = f"--nsqd-tcp-address={source}", f"--destination-nsqd-tcp-address={destination}"
    with Tool("nsq_to_nsq", f"--topic={topic}", "--channel=c", *arguments) as tool:
        eventually(lambda: elsewhere.topic(topic), timeout=LIMIT)
        with stopped(elsewhere):
            prepare(nsqd, topic, 100)
            eventually(lambda: nsqd.channel(topic)["in_flight_count"] == 100)
            assert stops_in_time(tool) == 0
    found = nsqd.channel(topic)
    assert found["depth"] + found["in_flight_count"] + found["deferred_count"] == 100


def test_nsq_to_nsq_stops_in_time_when_the_source_hangs(nsqd: Nsqd, topic: str, start_nsqd: StartNsqd) -> None:
    source = start_nsqd()
    prepare(source, topic, 1)
    places = f"--nsqd-tcp-address={address(source.tcp)}", f"--destination-nsqd-tcp-address={address(nsqd.tcp)}"
    with Tool("nsq_to_nsq", f"--topic={topic}", "--channel=c", *places) as tool:
        eventually(lambda: nsqd.topic(topic), timeout=LIMIT)
        with stopped(source):
            assert stops_in_time(tool) == 0


def test_to_nsq_stops_in_time_when_its_nsqd_hangs(topic: str, start_nsqd: StartNsqd) -> None:
    node = start_nsqd()
    with Tool("to_nsq", f"--topic={topic}", f"--nsqd-tcp-address={address(node.tcp)}", stdin=True) as tool:
        assert tool.process.stdin is not None
        tool.process.stdin.write(b"first\n")
        tool.process.stdin.flush()
        eventually(lambda: node.topic(topic), timeout=LIMIT)
        with stopped(node):
            tool.process.stdin.write(b"second\n")
            tool.process.stdin.flush()
            eventually(lambda: node.unread_bytes, timeout=LIMIT)
            assert stops_in_time(tool) == 1
            assert "stopped while a record waited for its answer" in tool.log


@pytest.mark.parametrize("hung", ["source", "destination"])
def test_nsq_replay_stops_in_time_and_keeps_its_place(
    topic: str, start_nsqd: StartNsqd, tmp_path: Path, hung: str
) -> None:
    nodes = {"source": start_nsqd(), "destination": start_nsqd()}
    source, destination = nodes["source"], nodes["destination"]
    prepare(source, topic, 3000)
    eventually(lambda: source.http("GET", f"/topic/log?topic={topic}").json["next"] == 3000)
    checkpoint = tmp_path / "checkpoint"
    command = (
        f"--topic={topic}",
        f"--nsqd-http-address={address(source.http_address)}",
        f"--destination-topic={topic}",
        f"--destination-nsqd-tcp-address={address(destination.tcp)}",
        f"--checkpoint={checkpoint}",
        "--batch-size=100",
    )
    with Tool("nsq_replay", *command, "--rate=1000") as tool:
        eventually(lambda: destination.topic(topic), timeout=LIMIT)
        with stopped(nodes[hung]):
            assert stops_in_time(tool) == 3
    with Tool("nsq_replay", *command) as tool:  # the same command continues
        assert tool.wait() == 0
    client = destination.connect()
    client.subscribe(topic, "check", ready=2500)
    found: set[bytes] = set()
    while len(found) < 3000:
        message = client.message(LIMIT)
        client.finish(message)
        found.add(message.body)


@pytest.mark.parametrize("sick", [never_accepts, never_answers, resets])
def test_nsqadmin_goes_on_and_stops_in_time_when_notifications_hang(
    nsqd: Nsqd, topic: str, sick: Callable[[], AbstractContextManager[str]]
) -> None:
    needs_module("starlette")
    place = f"nsqd-http-address={address(nsqd.http_address)}"
    with sick() as url, Nsqadmin(place, f"notification-http-endpoint={url}/") as admin:
        began = time.monotonic()
        for number in range(20):
            created = admin.json("POST", "/api/topics", {"topic": f"{topic[:40]}-{number}"})
            assert created.status == 200
        print(f"20 actions in {time.monotonic() - began:.2f} s")
        with lifetime_of(admin.pid) as life:
            assert admin.stop() == 0
        print(f"stopped in {life.seconds:.2f} s")
        assert life.seconds < STOPS_IN
