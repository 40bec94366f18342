"""HTTP requests that block the calling thread.

This client is for code without a loop: commands, `nsqclient.blocking`, Spark's driver and workers, and the check of a
node's owner, which has its own thread so that a busy loop can't delay it. On trio, use `http_client`.
docs/decisions/0037-one-http.md lists all clients.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import TracebackType


class NotHttp(OSError):
    """The address isn't valid for HTTP, or the response is malformed or incomplete."""


class BlockingHttp:
    """Sends requests to one server, one at a time, over a connection that stays open. Use it in a `with` block."""

    def __init__(
        self, host: str, port: int | None = None, *, timeout: float, tls: ssl.SSLContext | None = None
    ) -> None:
        """Connect with the first request. `host` may have the port behind a colon. Raises NotHttp.

        `timeout` is in seconds, and limits each connect, write and read.
        """
        try:
            self._connection = (
                HTTPConnection(host, port, timeout=timeout)
                if tls is None
                else HTTPSConnection(host, port, timeout=timeout, context=tls)
            )
        except HTTPException as error:
            raise NotHttp(str(error)) from error

    def __enter__(self) -> BlockingHttp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next request makes another one."""
        self._connection.close()

    @property
    def peer(self) -> str:
        """The IP address of the server, to which this connects if necessary. Raises OSError."""
        if self._connection.sock is None:
            self._connection.connect()
        return str(self._connection.sock.getpeername()[0])

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Iterable[tuple[str, str | bytes]] = (),
        body: bytes | None = None,
        most: int | None = None,
    ) -> tuple[int, bytes]:
        """Return the status and the body of the response, whatever they are. Raises OSError.

        Reads at most `most` bytes of the body. If there are more, send no other request.
        """
        with self.response_to(method, target, headers=headers, body=body) as response:
            return response.status, response.read(most)

    @contextmanager
    def response_to(
        self, method: str, target: str, *, headers: Iterable[tuple[str, str | bytes]] = (), body: bytes | None = None
    ) -> Iterator[HTTPResponse]:
        """Yield the response, so that a long body can be read in parts. Raises OSError, also inside the block.

        Read all of the body, or send no other request.
        """
        try:
            self._connection.request(method, target, body, dict(headers))
            yield self._connection.getresponse()
        except HTTPException as error:
            if isinstance(error, OSError):  # the server has closed the connection
                raise
            raise NotHttp(str(error) or type(error).__name__) from error
