"""One GET on a connection of its own, on trio: all that a daemon asks of another one.

A client library would bring a connection pool, redirects, cookies and a second event-loop layer into each daemon: some
megabytes and a good part of the start-up time of a broker, for one question for each new topic. The parser is the one
that serves requests (httptools).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from math import inf
from typing import Final

import httptools
import trio

from common.net import join_host_port

_MOST_BYTES: Final = 16 << 20  # of an answer
_READ_SIZE: Final = 64 * 1024


class HttpFailed(Exception):
    """There is no answer. The message says why."""


class HttpTimeout(HttpFailed):
    """There is none in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


async def get(
    host: str,
    port: int,
    target: str,
    *,
    tls: ssl.SSLContext | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    connect_timeout: float = inf,
    timeout: float = inf,
) -> Answer:
    """The answer, whatever its status. Seconds; `timeout` is for all of it. Raises HttpFailed."""
    lines = [f"GET {target} HTTP/1.1", f"Host: {join_host_port(host, port)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    request = "\r\n".join([*lines, "", ""]).encode()
    try:
        with trio.fail_after(timeout):
            stream = await _connect(host, port, tls, connect_timeout)
            try:
                await stream.send_all(request)
                return await _receive(stream)
            finally:
                await trio.aclose_forcefully(stream)
    except trio.TooSlowError as error:
        raise HttpTimeout("timeout") from error
    except (OSError, trio.BrokenResourceError, ssl.CertificateError) as error:
        raise HttpFailed(_cause(error)) from error
    except httptools.HttpParserError as error:
        raise HttpFailed(f"malformed HTTP response: {error}") from error


def _cause(error: BaseException) -> str:
    """trio wraps: one error for all addresses of a name, one for whatever broke a stream."""
    inner = error.__cause__
    if isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return str(inner or error)


async def _connect(host: str, port: int, tls: ssl.SSLContext | None, limit: float) -> trio.abc.Stream:
    with trio.fail_after(limit):
        stream = await trio.open_tcp_stream(host, port)
    if tls is None:
        return stream
    return trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)


async def _receive(stream: trio.abc.Stream) -> Answer:
    answer = _Parsed()
    parser = httptools.HttpResponseParser(answer)
    while not answer.complete:
        data = await stream.receive_some(_READ_SIZE)
        if not data:
            if answer.ends_with_the_connection:
                break
            raise HttpFailed("connection closed within the response")
        parser.feed_data(data)
        if answer.size > _MOST_BYTES:
            raise HttpFailed(f"response of more than {_MOST_BYTES} bytes")
    return Answer(parser.get_status_code(), b"".join(answer.pieces))


class _Parsed:
    """What httptools calls back."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self.complete = False
        self._has_head = False
        self._has_end = False  # says where it ends

    @property
    def ends_with_the_connection(self) -> bool:
        return self._has_head and not self._has_end

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_end |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)
        self.size += len(body)

    def on_message_complete(self) -> None:
        self.complete = True
