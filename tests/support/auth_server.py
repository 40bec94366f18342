"""A fake authorization server on a real socket. It answers as a test tells it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import Final

from tests.support.http_server import HttpServer, Reply, Request

EVERYTHING: Final = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}


def granting(*authorizations: object, ttl: int = 3600, **fields: object) -> Reply:
    document = {"ttl": ttl, "identity": "", "identity_url": "", "authorizations": [*authorizations], **fields}
    return Reply(body=json.dumps(document).encode())


class AuthServer(HttpServer):
    """`answer` decides about each request, in a thread of its own. By default everybody may do everything."""

    protocol = "HTTP/1.0"

    def __init__(self, answer: Callable[[Request], Reply] | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls=tls)
        self.answer = answer or (lambda asked: granting(EVERYTHING))

    def reply(self, request: Request) -> Reply:
        return self.answer(request)
