"""Every daemon refuses the request heads that Go's server refuses; old tools still work."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.certificates import make_certificates
from tests.support.process import Nsqadmin, Nsqd, Nsqlookupd, needs_module

REFUSED = {
    b"%s HTTP/1.1\r\n\r\n": b"HTTP/1.1 400 Bad Request: missing required Host header\r\n",
    b"%s HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n": b"HTTP/1.1 400 Bad Request: too many Host headers\r\n",
    b"%s HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": b"HTTP/1.1 400 Bad Request\r\n",
    b"%s HTTP/1.1\r\nHost: a\r\nExpect: bogus\r\n\r\n": b"HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\n",
    b"%s HTTP/1.1\r\nHost: a\r\nX: "
    + b"x" * (70 * 1024)
    + b"\r\n\r\n": b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
}
TAKEN = (
    b"%s HTTP/1.0\r\n\r\n",  # as ab and HAProxy's checks send it
    b"%s HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
    b"%s HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n",
)


@dataclass(frozen=True)
class Door:
    address: tuple[str, int]
    target: bytes
    tls: ssl.SSLContext | None = None

    def ask(self, request: bytes) -> bytes:
        """Return the beginning of the answer to a request that ends its connection, or of the only answer."""
        plain = socket.create_connection(self.address, timeout=30)
        with self.tls.wrap_socket(plain, server_hostname="localhost") if self.tls is not None else plain as sock:
            sock.sendall(request % self.target)
            answer = b""
            while b"\r\n\r\n" not in answer and (data := sock.recv(65536)):
                answer += data
            return answer


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Door]]:
    made = make_certificates(tmp_path_factory.mktemp("certificates"))
    secure = ("https-address=127.0.0.1:0", f"tls-cert={made.certificate}", f"tls-key={made.key}")
    tls = ssl.create_default_context(cafile=str(made.authority))
    with Nsqd(tmp_path_factory.mktemp("nsqd"), *secure) as nsqd, Nsqlookupd() as lookupd:
        yield {
            "fast path": Door(nsqd.http_address, b"GET /ping"),
            "nsqd": Door(nsqd.http_address, b"GET /info"),
            "publishing": Door(nsqd.http_address, b"POST /pub?topic=t"),
            "https fast path": Door(nsqd.https_address, b"GET /ping", tls),
            "https": Door(nsqd.https_address, b"GET /info", tls),
            "nsqlookupd": Door(lookupd.http_address, b"GET /ping"),
        }


NAMES = ["fast path", "nsqd", "publishing", "https fast path", "https", "nsqlookupd"]


@pytest.mark.parametrize("name", NAMES)
def test_a_head_that_breaks_a_rule_is_refused_at_every_door(doors: dict[str, Door], name: str) -> None:
    for head, answer in REFUSED.items():
        assert doors[name].ask(head).startswith(answer), head[:80]


@pytest.mark.parametrize("name", NAMES)
def test_old_tools_that_name_no_host_are_answered(doors: dict[str, Door], name: str) -> None:
    # MSG_EMPTY shows that the head was accepted.
    expected = b" 400 Bad Request\r\nContent-Type: application/json" if name == "publishing" else b" 200 OK\r\n"
    for head in TAKEN:
        assert expected in doors[name].ask(head), head


def test_nsqadmin_keeps_the_same_rules() -> None:
    needs_module("starlette")
    with Nsqadmin("lookupd-http-address=127.0.0.1:1") as admin:
        door = Door(admin.http_address, b"GET /ping")
        for head, answer in REFUSED.items():
            assert door.ask(head).startswith(answer), head[:80]
        for head in TAKEN:
            assert b" 200 OK\r\n" in door.ask(head), head
