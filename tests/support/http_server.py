"""What the HTTP servers of tests share: a free port on loopback, and a thread that lives as long as the block."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], backlog: int) -> None:
        self.request_queue_size = backlog
        super().__init__(("127.0.0.1", 0), handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a client may disconnect at any time."""


class HttpServer:
    """`backlog` is the number of connections that may wait to be accepted; Python's own servers have 5."""

    def __init__(
        self, handler: type[BaseHTTPRequestHandler], *, tls: ssl.SSLContext | None = None, backlog: int = 256
    ) -> None:
        self._server = _Server(handler, backlog)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

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
