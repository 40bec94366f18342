"""Hostile HTTP servers: `python -m bench.attack.servers auth|nodes COUNT` prints their ports and serves."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from bench.attack.bodies import gzip_bomb
from bench.work import HOST

_PIECE: Final = b"[" * (1 << 20)
_RIGHTS: Final = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
_UNPACKED: Final = 180_000_000


def _granted(channels: list[str]) -> bytes:
    rights = {**_RIGHTS, "channels": channels}
    return json.dumps({"ttl": 3600, "identity": "", "identity_url": "", "authorizations": [rights]}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _begin(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self._begin(status, len(body), **headers)
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


class SickAuth(_Handler):
    """An authorization server that is correct unless the secret begins with `sick:` or `deny:`."""

    sick: Mapping[str, Callable[[], bytes]] = {
        "deep": lambda: b"[" * 5_000_000,
        "many": lambda: _granted([f"^channel_{number}_[a-z]{{3,9}}(x|y)*$" for number in range(10_000)]),
    }

    def do_GET(self) -> None:
        kind, _, what = parse_qs(urlsplit(self.path).query).get("secret", [""])[0].partition(":")
        if kind == "deny":
            self._answer(403, b"{}")
        elif kind != "sick":
            self._answer(200, _granted([".*"]))
        elif what == "huge":
            self._begin(200, 300 << 20)
            for _ in range(300):
                self.wfile.write(_PIECE)
        else:
            self._answer(200, self.sick[what]())


class HostileNode(_Handler):
    """An nsqd whose statistics unpack to something huge."""

    bomb = b""

    def do_GET(self) -> None:
        if self.path.startswith("/stats"):
            self._answer(200, self.bomb, Content_Type="application/json", Content_Encoding="gzip")
        else:
            self._answer(200, b"{}", Content_Type="application/json")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients may go at any time."""


def main(kind: str, count: str = "1") -> None:
    if kind == "nodes":
        topic = b'{"topic_name":"evil","channels":[],"depth":0,"message_count":0,"paused":false},'
        HostileNode.bomb = gzip_bomb(
            b'{"version":"1.3.0","health":"OK","topics":[', topic, topic[:-1] + b"]}", _UNPACKED
        )
    servers = [_Server((HOST, 0), HostileNode if kind == "nodes" else SickAuth) for _ in range(int(count))]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(*(server.server_address[1] for server in servers), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
