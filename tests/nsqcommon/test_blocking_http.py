"""Requests that block, to a server in another thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nsqcommon.blocking_http import BlockingHttp, NotHttp

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
LIMIT = 30.0  # seconds


@contextmanager
def server(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Answer each request of one connection with these bytes, then close it. Yield its address, and what it has read."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                for answer in answers:
                    requests.append(sock.recv(65536))
                    sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", requests
        thread.join(LIMIT)


def test_requests_share_a_connection() -> None:
    not_found = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with server(OK, not_found) as (address, requests), BlockingHttp(address, timeout=LIMIT) as http:
        assert http.request("GET", "/a?b=c", headers=[("Authorization", "Bearer x")]) == (200, b"hello")
        assert http.request("POST", "/d", body=b"body") == (404, b"")
    assert requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer x\r\n" in requests[0]
    assert requests[1].startswith(b"POST /d HTTP/1.1\r\n")


def test_a_port_may_be_given_apart() -> None:
    with server(OK) as (address, _), BlockingHttp("127.0.0.1", int(address.partition(":")[2]), timeout=LIMIT) as http:
        assert http.request("GET", "/") == (200, b"hello")


def test_a_long_body_is_cut() -> None:
    with server(OK) as (address, _), BlockingHttp(address, timeout=LIMIT) as http:
        assert http.request("GET", "/", most=3) == (200, b"hel")


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"])
def test_garbage_and_half_an_answer_are_errors(answer: bytes) -> None:
    with (
        server(answer) as (address, _),
        BlockingHttp(address, timeout=LIMIT) as http,
        pytest.raises(NotHttp, match=r"garbage|5 bytes read"),
    ):
        http.request("GET", "/")


def test_a_server_that_says_nothing_and_one_that_is_not_there() -> None:
    with server(b"") as (address, _), BlockingHttp(address, timeout=LIMIT) as http, pytest.raises(ConnectionResetError):
        http.request("GET", "/")
    with BlockingHttp(address, timeout=LIMIT) as http, pytest.raises(ConnectionRefusedError):
        http.request("GET", "/")


def test_an_impossible_address() -> None:
    with pytest.raises(NotHttp, match="nonnumeric port"):
        BlockingHttp("host:port", timeout=LIMIT)
