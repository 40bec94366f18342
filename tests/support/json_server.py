"""An HTTP server that answers with any JSON: for nsqds and nsqlookupds that misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.http_server import HttpServer

# Path and arguments -> a document, or a status with a text.
Answer = Callable[[str, dict[str, str]], Any]


class JsonServer(HttpServer):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                answer = outer.answer(parts.path, dict(parse_qsl(parts.query)))
                status, body = answer if isinstance(answer, tuple) else (200, json.dumps(answer))
                content = body.encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:  # the client has not waited for the answer
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        super().__init__(Handler)
