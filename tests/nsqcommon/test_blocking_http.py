"""One request that waits for its answer."""

from __future__ import annotations

import socket
import threading

import pytest

from nsqcommon.blocking_http import FAILURES, ask
from tests.support.http_server import HttpServer, Reply, Request


class Echo(HttpServer):
    def reply(self, request: Request) -> Reply:
        return Reply(404, f"{request.method} {request.target}".encode())


def test_an_answer_is_its_status_and_the_beginning_of_its_body() -> None:
    with Echo() as server:
        assert ask(f"{server.url}/a?b=c", timeout=10, most=100) == (404, b"GET /a?b=c")
        assert ask(server.url, timeout=10, most=5, method="PUT", headers={"X-One": "1"}) == (404, b"PUT /")
        assert server.requests[1].headers["x-one"] == "1"


def test_a_password_in_the_url_is_not_sent() -> None:
    with Echo() as server:
        ask(f"http://me:secret@{server.address}/", timeout=10, most=100)
        assert "secret" not in repr(server.requests)


def test_something_else_than_http_is_a_failure() -> None:
    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"SSH-2.0\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(FAILURES):
            ask(f"http://127.0.0.1:{listening.getsockname()[1]}/", timeout=10, most=100)
        thread.join()
