"""A fake authorization server on a real socket. It answers as a test tells it, and remembers the requests."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import HttpServer

EVERYTHING: Final = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def secret(self) -> str:
        return parse_qs(urlsplit(self.target).query).get("secret", [""])[0]


@dataclass(slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def granting(*authorizations: object, ttl: int = 3600, **fields: object) -> Reply:
    document = {"ttl": ttl, "identity": "", "identity_url": "", "authorizations": [*authorizations], **fields}
    return Reply(body=json.dumps(document).encode())


class AuthServer(HttpServer):
    """`answer` decides about each request, in a thread of its own. By default everybody may do everything."""

    def __init__(self, answer: Callable[[Asked], Reply] | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer or (lambda asked: granting(EVERYTHING))
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers, body)
                outer.asked.append(asked)
                reply = outer.answer(asked)
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_POST = _serve

            def log_message(self, format: str, *args: Any) -> None: ...

        super().__init__(Handler, tls=tls)
