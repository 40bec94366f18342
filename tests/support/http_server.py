"""An HTTP server on a free port of the loopback interface. Derived classes say how it answers; it keeps the requests."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def arguments(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))

    @property
    def secret(self) -> str:
        """The secret that an authorization server is asked about."""
        return self.arguments.get("secret", "")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpServer:
    """`backlog` is the number of connections that may wait to be accepted; Python's own servers have 5.

    With `port`, it listens there, and not on a free port.

    If `reply` raises an exception, the connection is closed without an answer.
    """

    protocol: ClassVar[str] = "HTTP/1.1"

    def __init__(
        self, *, tls: ssl.SSLContext | None = None, backlog: int = 256, keeps_requests: bool = True, port: int = 0
    ) -> None:
        self.requests: list[Request] = []
        self.keeps_requests = keeps_requests
        self.connections = 0
        self.now: float | None = None  # wall time that its answers have in Date; None: the real one
        self._server = _Server(_handler_of(self), backlog, port)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def reply(self, request: Request) -> Reply:
        """Return the answer, in a thread of the connection."""
        raise NotImplementedError

    def write(self, body: bytes, to: BufferedIOBase) -> None:
        to.write(body)

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], backlog: int, port: int) -> None:
        self.request_queue_size = backlog
        super().__init__(("127.0.0.1", port), handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a client may disconnect at any time."""


def _handler_of(server: HttpServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = server.protocol
        disable_nagle_algorithm = True  # a body is sent apart from its head, and would wait 40 ms for an answer to that

        def setup(self) -> None:
            server.connections += 1
            super().setup()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            if server.keeps_requests:
                server.requests.append(request)
            reply = server.reply(request)
            has_body = reply.status != 204
            length = {"Content-Length": str(len(reply.body))} if has_body else {}
            try:
                self.send_response(reply.status)
                for name, value in {**length, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if has_body:
                    server.write(reply.body, self.wfile)
            except OSError:  # the client has not waited for the answer
                self.close_connection = True

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(server.now if timestamp is None else timestamp)

        do_DELETE = do_GET = do_POST = do_PUT = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler
