"""An HTTP server that keeps the requests, and answers as a test tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from tests.support.http_server import HttpServer


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class HttpSink(HttpServer):
    """`answer` returns the status for each request, in the thread that serves it; `content` is the answer's body."""

    def __init__(
        self, answer: Callable[[Request], int] = lambda request: 200, *, content: bytes = b"ok", backlog: int = 256
    ) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.answer = answer
        self.content = content
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                sink.connections += 1
                super().setup()

            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                sink.requests.append(request)
                status = sink.answer(request)
                try:
                    self.send_response(status)
                    if status in (301, 307):
                        self.send_header("Location", "/elsewhere")
                    if status != 204:
                        self.send_header("Content-Length", str(len(sink.content)))
                    self.end_headers()
                    if status != 204:
                        self.wfile.write(sink.content)
                except OSError:  # the client has not waited for the answer
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        super().__init__(Handler, backlog=backlog)

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]
