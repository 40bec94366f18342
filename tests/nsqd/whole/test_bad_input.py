"""Whatever peers send, nsqd answers or closes, its memory stays bounded, and other clients do not notice."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from struct import pack

import pytest

from nsqcommon.wire.commands import MAGIC, identify, pub
from tests.support.client import TIMEOUT, Client
from tests.support.process import Nsqd, eventually

MEGABYTE = 1 << 20
MOST_WORK = 2.0  # seconds that nsqd may work on other things before it has passed on one message
MOST_DISTURBED = 10.0  # seconds for one message, on a machine that other tests keep busy; the usual is milliseconds
PAUSE = 0.01  # seconds between two messages
GROWTH = 60 * MEGABYTE  # what may remain after an attack: buffers that the allocator keeps


@contextmanager
def undisturbed(nsqd: Nsqd) -> Iterator[None]:
    """Run a well-behaved pair of clients beside the block. Afterwards memory and descriptors have to be as before."""
    eventually(lambda: nsqd.topic("bystander") is None or nsqd.channel("bystander")["client_count"] == 0)
    before, descriptors = nsqd.resident_bytes, nsqd.descriptors
    stop, slowest, most_work, failures = threading.Event(), [0.0], [0.0], list[BaseException]()

    def talk() -> None:
        try:
            with Client(nsqd.tcp) as client:
                client.subscribe("bystander", ready=1)
                while not stop.is_set():
                    began, worked = time.monotonic(), nsqd.cpu_seconds
                    stop.wait(PAUSE)
                    client.publish("bystander", b"x")
                    client.finish(client.message())
                    slowest[0] = max(slowest[0], time.monotonic() - began)
                    most_work[0] = max(most_work[0], nsqd.cpu_seconds - worked)
        except BaseException as error:
            failures.append(error)

    bystander = threading.Thread(target=talk)
    bystander.start()
    try:
        yield
    finally:
        stop.set()
        bystander.join(30)
    assert not failures, failures
    assert most_work[0] < MOST_WORK
    assert slowest[0] < MOST_DISTURBED
    eventually(lambda: nsqd.descriptors <= descriptors + 8)  # logs and journal of new topics
    assert nsqd.resident_bytes < before + GROWTH


@pytest.fixture(autouse=True)
def _bystander_s_topic(nsqd: Nsqd) -> None:
    """Make the bystander's topic, so that its files are open before descriptors are counted."""
    nsqd.connect().publish("bystander", b"x")
    nsqd.post("/channel/create?topic=bystander&channel=c")
    nsqd.post("/channel/empty?topic=bystander&channel=c")


def is_cut_off(client: Client, data: bytes, *, pause: float = 0.0) -> bool:
    """Send the same bytes again and again, and return whether the broker closes the connection or stops reading."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        try:
            client.send(data)
        except OSError:
            return True
        time.sleep(pause)
    return False


# One peer


@pytest.mark.parametrize(
    ("command", "size", "expected"),
    [
        (b"PUB t\n", 0, b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n", -1, b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"PUB t\n", -(1 << 31), b"E_BAD_MESSAGE PUB invalid message body size -2147483648"),
        (b"PUB t\n", 1_048_577, b"E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
        (b"PUB t\n", (1 << 31) - 1, b"E_BAD_MESSAGE PUB message too big 2147483647 > 1048576"),
        (b"DPUB t 5\n", -1, b"E_BAD_MESSAGE DPUB invalid message body size -1"),
        (b"DPUB t 5\n", 1_048_577, b"E_BAD_MESSAGE DPUB message too big 1048577 > 1048576"),
        (b"MPUB t\n", 0, b"E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n", -1, b"E_BAD_BODY MPUB invalid body size -1"),
        (b"MPUB t\n", 5_242_881, b"E_BAD_BODY MPUB body too big 5242881 > 5242880"),
        (b"IDENTIFY\n", 0, b"E_BAD_BODY IDENTIFY invalid body size 0"),
        (b"IDENTIFY\n", -1, b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"IDENTIFY\n", 65_537, b"E_BAD_BODY IDENTIFY body too big 65537 > 65536"),
        (b"AUTH\n", -1, b"E_BAD_BODY AUTH invalid body size -1"),
    ],
)
def test_a_bad_length_is_named_and_ends_the_connection(nsqd: Nsqd, command: bytes, size: int, expected: bytes) -> None:
    client = nsqd.connect()
    client.send(command, pack(">i", size))
    assert client.error() == expected
    assert client.closes()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (pack(">ii", 100, -1), b"E_BAD_BODY MPUB invalid message count -1"),
        (pack(">ii", 100, (1 << 31) - 1), b"E_BAD_BODY MPUB invalid message count 2147483647"),
        (pack(">iii", 100, 1, 0), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (pack(">iii", 100, 2, 1) + b"x" + pack(">i", -7), b"E_BAD_MESSAGE MPUB invalid message(1) body size -7"),
        (pack(">iii", 100, 1, 1_048_577), b"E_BAD_MESSAGE MPUB message too big 1048577 > 1048576"),
    ],
)
def test_a_bad_mpub_is_explained_and_publishes_nothing(nsqd: Nsqd, topic: str, body: bytes, expected: bytes) -> None:
    client = nsqd.connect()
    client.send(f"MPUB {topic}\n".encode(), body)
    assert client.error() == expected
    assert client.closes()
    assert nsqd.topic(topic)["message_count"] == 0


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n" + pack(">i", 10) + b"five5", b"E_BAD_MESSAGE PUB failed to read message body"),
        (b"MPUB t\n" + pack(">i", 10), b"E_BAD_BODY MPUB failed to read message count"),
        (b"MPUB t\n" + pack(">ii", 10, 1), b"E_BAD_MESSAGE MPUB failed to read message(0) body size"),
        (b"MPUB t\n" + pack(">iii", 10, 1, 5) + b"x", b"E_BAD_MESSAGE MPUB failed to read message body"),
        (b"IDENTIFY\n" + pack(">i", 10) + b"{", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_a_body_that_ends_too_early_is_explained(nsqd: Nsqd, sent: bytes, expected: bytes) -> None:
    client = nsqd.connect()
    client.send(sent)
    client.no_more()
    assert client.error() == expected
    assert client.closes()


@pytest.mark.parametrize("sent", [b"", b"NOP", b"PUB t", b"SUB t c"])
def test_a_line_that_never_ends_is_dropped_with_its_connection(nsqd: Nsqd, sent: bytes) -> None:
    client = nsqd.connect()
    client.send(sent)
    client.no_more()
    assert client.closes()


def test_an_endless_line_costs_nothing(nsqd: Nsqd) -> None:
    with undisturbed(nsqd):
        assert is_cut_off(nsqd.connect(), b"x" * 65_536)


def test_a_slow_sender_is_cut_off(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    began = time.monotonic()
    client.identify(heartbeat_interval=1000)
    assert is_cut_off(client, b"N", pause=0.05)  # never a whole command
    assert time.monotonic() - began > 1.8


def test_a_reader_that_does_not_read_is_cut_off(nsqd: Nsqd, topic: str) -> None:
    lazy = nsqd.connect()
    lazy.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.identify(heartbeat_interval=1000)
    lazy.subscribe(topic, ready=2500)
    publisher = nsqd.connect()
    with undisturbed(nsqd):
        for _ in range(100):
            publisher.publish(topic, *[b"x" * 10_000] * 10)
        eventually(lambda: nsqd.channel(topic)["client_count"] == 0)


def test_who_never_reads_its_answers_is_held_back(nsqd: Nsqd) -> None:
    client = nsqd.connect()
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.identify(heartbeat_interval=2000)
    with undisturbed(nsqd):
        assert is_cut_off(client, pub("never-reads", b"x") * 1000)


# Many peers


def garbage(chance: random.Random) -> bytes:
    return random.Random(chance.random()).randbytes(chance.randint(1, 5000))


def almost_nsq(chance: random.Random) -> bytes:
    """Return commands that begin well."""
    words = [
        b"IDENTIFY",
        b"SUB t c",
        b"PUB t",
        b"MPUB t",
        b"DPUB t 1",
        b"RDY 1",
        b"FIN 0123456789abcdef",
        b"CLS",
        b"NOP",
    ]
    parts = [
        chance.choice(words) + b"\n" + chance.choice((b"", pack(">i", chance.randint(-5, 1 << 30)))) for _ in range(20)
    ]
    return MAGIC + b"".join(parts) + garbage(chance)


def almost_http(chance: random.Random) -> bytes:
    method = chance.choice((b"GET", b"POST", b"PUT", b"BREW", b"\xff"))
    path = chance.choice((b"/pub?topic=t", b"/stats?%zz", b"/" + b"a" * 70_000, b"*", b"/mpub?topic=t&binary=true"))
    header = chance.choice(
        (b"Content-Length: -1", b"Transfer-Encoding: chunked", b"Content-Length: 9999999999", b"\0: x")
    )
    return method + b" " + path + b" HTTP/1.1\r\n" + header + b"\r\n\r\n" + garbage(chance)


def attack(address: tuple[str, int], count: int, make: Callable[[random.Random], bytes], seed: int) -> None:
    """Open this many connections at once, each with its garbage, and close all of them."""
    chance = random.Random(seed)
    with ExitStack() as open_sockets:
        for _ in range(count):
            sock = open_sockets.enter_context(socket.create_connection(address, timeout=TIMEOUT))
            sock.setblocking(False)
            try:
                sock.send(make(chance))
            except OSError:  # nsqd has closed the connection, or does not read any more
                continue


@pytest.mark.parametrize("make", [garbage, almost_nsq], ids=lambda it: it.__name__)
def test_a_thousand_connections_of_garbage_on_tcp(nsqd: Nsqd, make: Callable[[random.Random], bytes]) -> None:
    with undisturbed(nsqd):
        attack(nsqd.tcp, 1000, make, seed=1)
    assert nsqd.http("GET", "/ping").body == b"OK"


@pytest.mark.parametrize("make", [garbage, almost_http], ids=lambda it: it.__name__)
def test_a_thousand_connections_of_garbage_on_http(nsqd: Nsqd, make: Callable[[random.Random], bytes]) -> None:
    with undisturbed(nsqd):
        attack(nsqd.http_address, 1000, make, seed=2)
    assert nsqd.http("GET", "/ping").body == b"OK"


def test_many_bodies_that_never_come_cost_only_what_did_come(nsqd: Nsqd) -> None:
    with ExitStack() as clients, undisturbed(nsqd):
        for _ in range(500):
            client = clients.enter_context(Client(nsqd.tcp))
            client.send(b"PUB t\n", pack(">i", 1_048_576), b"x" * 1000)
        clients.close()


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (65_536, b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (1_000_000, b"E_BAD_BODY IDENTIFY body too big 1000000 > 65536"),
    ],
)
def test_a_huge_identify_of_nothing_but_brackets_is_refused(nsqd: Nsqd, size: int, error: bytes) -> None:
    client = nsqd.connect()
    with undisturbed(nsqd):
        client.send(identify(b"[" * size))
        assert client.error() == error
