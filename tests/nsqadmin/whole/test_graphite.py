"""Graphite behind nsqadmin: rates, pictures, and what is passed on."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.support.process import Nsqadmin, needs_module

needs_module("starlette")

NOWHERE: Final = "nsqd-http-address=127.0.0.1:1"  # no node is asked


@contextmanager
def graphite() -> Iterator[tuple[int, list[tuple[str, dict[str, str]]]]]:
    """Answer the query of a rate, or of a picture, and keep requests and their headers."""
    asked: list[tuple[str, dict[str, str]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            body = b'[{"datapoints":[[1234.0,1]]}]' if "format=json" in self.path else b"picture"
            self.send_response(200)
            self.send_header("content-type", "image/png")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield int(server.server_address[1]), asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_rate_and_pictures_come_from_graphite() -> None:
    with graphite() as (port, asked):
        url = f"graphite-url=http://me:secret@127.0.0.1:{port}/ignored"
        with Nsqadmin(NOWHERE, url, "proxy-graphite", "base-path=/nsq") as admin:
            picture = admin.json("GET", "/nsq/render?target=a&target=b", Authorization="Basic eDp5", Cookie="mine=1")
            assert (picture.status, picture.body, picture.headers["content-type"]) == (200, b"picture", "image/png")
        path, headers = asked[0]
        assert path == "/render?target=a&target=b"
        assert headers["authorization"] == "Basic bWU6c2VjcmV0"
        assert "cookie" not in headers
        with Nsqadmin(NOWHERE, f"graphite-url=http://127.0.0.1:{port}") as admin:
            assert admin.json("GET", "/api/graphite?metric=rate&target=x").json == {"rate": "20.57"}
            assert admin.http("GET", "/render").status == 404
        assert asked[-1][0] == "/render?format=json&from=-120sec&target=x&until=-60sec"
    with Nsqadmin(NOWHERE) as admin:
        answer = admin.json("GET", "/api/graphite?metric=rate&target=x")
        assert (answer.status, answer.json["message"]) == (500, "INTERNAL_ERROR")
