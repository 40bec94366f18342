"""An HTTP server that answers with any JSON: for nsqds and nsqlookupds that misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.http_server import HttpServer, Reply, Request

# Path and arguments -> a document, or a status with a text.
Answer = Callable[[str, dict[str, str]], Any]


class JsonServer(HttpServer):
    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def reply(self, request: Request) -> Reply:
        answer = self.answer(request.path, request.arguments)
        status, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer))
        return Reply(status, body.encode(), {"Content-Type": "application/json"})
