"""One listener of a daemon has no descriptors left: the others work, and it works again when a client disconnects."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.certificates import make_certificates
from tests.support.client import open_socket
from tests.support.process import Daemon, Nsqd, Nsqlookupd, eventually

FEW: Final = ("prlimit", "--nofile=100:100")  # descriptors
MANY: Final = 200  # more connections than descriptors


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    certificates = make_certificates(tmp_path)
    broker = Nsqd(
        tmp_path / "data",
        f"tls-cert={certificates.certificate}",
        f"tls-key={certificates.key}",
        "https-address=127.0.0.1:0",
    )
    broker.under = FEW
    with broker:
        yield broker
        assert "Traceback" not in broker.log


@pytest.fixture
def nsqlookupd() -> Iterator[Nsqlookupd]:
    daemon = Nsqlookupd()
    daemon.under = FEW
    with daemon:
        yield daemon
        assert "Traceback" not in daemon.log


@contextmanager
def full(daemon: Daemon, address: tuple[str, int], door: str, *, said: bytes = b"") -> Iterator[None]:
    """Open idle connections until the listener takes no more."""
    with ExitStack() as idle:
        for _ in range(MANY):
            connection = idle.enter_context(open_socket(address))
            connection.sendall(said)
        eventually(lambda: re.search(rf"{door}: at its limit of \d+ connections", daemon.log))
        yield


def test_http_answers_while_tcp_is_full(nsqd: Nsqd) -> None:
    with full(nsqd, nsqd.tcp, "TCP"):
        for path in ("/ping", "/healthz", "/metrics", "/stats?format=json", "/info"):
            assert nsqd.http("GET", path).status == 200, path
        nsqd.post("/pub?topic=t", b"x")
    nsqd.connect().publish("t", b"y")
    assert eventually(lambda: nsqd.topic("t")["message_count"] == 2)


@pytest.mark.parametrize(
    "said", [b"", b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["silent", "at the web server"]
)
def test_tcp_and_https_go_on_while_http_is_full(nsqd: Nsqd, said: bytes) -> None:
    with full(nsqd, nsqd.http_address, "HTTP", said=said):
        nsqd.connect().publish("t", b"x")
        with socket.create_connection(nsqd.https_address, timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.0 400"
    assert eventually(lambda: nsqd.http("GET", "/ping").status == 200)


def test_tcp_and_http_go_on_while_https_is_full_of_silence(nsqd: Nsqd) -> None:
    with ExitStack() as idle:
        for _ in range(MANY):
            idle.enter_context(open_socket(nsqd.https_address))
        nsqd.connect().publish("t", b"x")
        assert nsqd.http("GET", "/ping").status == 200
        assert nsqd.descriptors < 100


def test_nsqlookupd_answers_while_tcp_is_full(nsqlookupd: Nsqlookupd) -> None:
    with full(nsqlookupd, nsqlookupd.tcp, "TCP"):
        for path in ("/ping", "/healthz", "/metrics", "/nodes", "/topics"):
            assert nsqlookupd.http("GET", path).status == 200, path


def test_nsqlookupd_takes_registrations_while_http_is_full(nsqlookupd: Nsqlookupd) -> None:
    with full(nsqlookupd, nsqlookupd.http_address, "HTTP"), open_socket(nsqlookupd.tcp) as connection:
        connection.sendall(b"  V1PING\n")
        assert connection.recv(6, socket.MSG_WAITALL) == b"\x00\x00\x00\x02OK"
    assert eventually(lambda: nsqlookupd.http("GET", "/ping").status == 200)
