"""A hostile authorization server: whatever it answers, and however many clients ask, nsqd keeps its memory and pace.

Each attacker gets a few answers of each kind. With `SICK_AUTH_SECONDS=60` they attack for that long.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from nsqcommon.wire.commands import auth, pub
from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd

SECONDS: Final = float(os.environ.get("SICK_AUTH_SECONDS", "0"))
ATTACKERS: Final = 6
ATTACKS: Final = 18  # at least
PUBLISHES: Final = 40  # at least, of another client
PAUSE: Final = 0.01  # seconds between two of them
MOST_GROWTH: Final = 100 << 20  # bytes; without a bound two of these answers took more
SLOWEST: Final = 0.1  # seconds of processor time during 95 of 100 publishes of another client; usual: 0.01

HONEST: Final = {"ttl": 3600, "authorizations": [{"topic": ".*", "channels": [".*"], "permissions": ["publish"]}]}


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def announced(sock: socket.socket) -> None:
    """Send a body of 300 MB, with its length."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 300000000\r\n\r\n")
    for _ in range(300):
        sock.sendall(b" " * 1_000_000)


def endless(sock: socket.socket) -> None:
    """Send chunks of two bytes that never end: a careless reader makes an object of each."""
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(1000):
        sock.sendall(b"2\r\n[[\r\n" * 10_000)


def endless_head(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(300):
        sock.sendall(b"x" * 1_000_000)


def nested(sock: socket.socket) -> None:
    sock.sendall(answer(b"[" * 5_000_000))


def many_expressions(sock: socket.socket) -> None:
    channels = [f"^(?:team|group)-{number}-[a-z0-9]{{3,20}}(?:\\.x|y)*$" for number in range(10_000)]
    entry = {"topic": ".*", "channels": channels, "permissions": ["subscribe", "publish"]}
    sock.sendall(answer(json.dumps({"ttl": 3600, "authorizations": [entry]}).encode()))


def many_names(sock: socket.socket) -> None:
    channels = [f"^team-{number}\\..*$" for number in range(10_000)]
    entry = {"topic": ".*", "channels": channels, "permissions": ["subscribe", "publish"]}
    sock.sendall(answer(json.dumps({"ttl": 3600, "authorizations": [entry]}).encode()))


@contextmanager
def sick_server(sickness: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve correct answers for the secret `honest`, and hostile ones for all others."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:

        def serve(sock: socket.socket) -> None:
            with sock, suppress(OSError):
                sock.settimeout(10)
                request = sock.recv(65536)
                if b"secret=honest" in request:
                    sock.sendall(answer(json.dumps(HONEST).encode()))
                else:
                    sickness(sock)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        listener.shutdown(socket.SHUT_RDWR)


def resident(nsqd: Nsqd) -> int:
    pages = Path(f"/proc/{nsqd.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("sickness", [announced, endless, endless_head, nested, many_expressions, many_names])
def test_a_sick_auth_server_takes_neither_memory_nor_time(
    start_nsqd: StartNsqd, sickness: Callable[[socket.socket], None]
) -> None:
    with sick_server(sickness) as address:
        nsqd = start_nsqd(f"auth-http-address={address}")
        honest = nsqd.connect()
        assert b"permission_count" in honest.ask(auth(b"honest"))
        assert honest.ask(pub("t", b"x")) == b"OK"
        before = resident(nsqd)
        stop = threading.Event()
        attacked: list[None] = []

        def attack() -> None:
            while not stop.is_set():
                with suppress(Exception), nsqd.connect() as client:
                    client.ask(auth(b"any"))
                attacked.append(None)

        attackers = [threading.Thread(target=attack) for _ in range(ATTACKERS)]
        for thread in attackers:
            thread.start()
        highest, times = before, list[float]()
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end or len(times) < PUBLISHES or len(attacked) < ATTACKS:
                began = nsqd.cpu_seconds  # so that it does not matter how busy the machine is
                time.sleep(PAUSE)
                assert honest.ask(pub("t", b"x")) == b"OK"
                times.append(nsqd.cpu_seconds - began)
                highest = max(highest, resident(nsqd))
        finally:
            stop.set()
            for thread in attackers:
                thread.join(30)
        times.sort()
    slow = times[len(times) * 95 // 100]
    print(
        f"{sickness.__name__}: {len(attacked)} attacks, {len(times)} publishes, +{highest - before >> 20} MiB, p95 {slow * 1000:.1f} ms"
    )  # for `pytest -rP`
    assert highest - before < MOST_GROWTH
    assert slow < SLOWEST
    assert "Traceback" not in nsqd.log
