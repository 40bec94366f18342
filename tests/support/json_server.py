"""An HTTP server that says whatever JSON a test wants: nsqds and nsqlookupds that are not what they should be."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

# What is asked, by path and arguments; a document, or a status and the text with it.
Answer = Callable[[str, dict[str, str]], Any]


class JsonServer:
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
                except OSError:  # whoever asked did not wait
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that has gone is no event."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
