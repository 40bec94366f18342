"""One request on a connection of its own, on trio: all that a daemon asks of another one.

A client library would bring a connection pool, redirects, cookies and a second event-loop layer into each daemon: some
megabytes and a good part of the start-up time of a broker, for one question for each new topic. The parser is the one
that serves requests (httptools).
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Final
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

import httptools
import trio

from common.net import join_host_port

_MOST_BYTES: Final = 16 << 20  # of an answer
_READ_SIZE: Final = 64 * 1024
_MOST_REDIRECTS: Final = 10  # as in Go
_TO_GET: Final = frozenset((301, 302, 303))  # as every client has always understood them
_REDIRECTS: Final = _TO_GET | {307, 308}

Headers = Sequence[tuple[str, str]]


class HttpFailed(Exception):
    """There is no answer. The message says why."""


class HttpTimeout(HttpFailed):
    """There is none in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    location: str = ""  # where else to ask


async def get(
    host: str,
    port: int,
    target: str,
    *,
    tls: ssl.SSLContext | None = None,
    headers: Headers = (),
    connect_timeout: float = inf,
    timeout: float = inf,
) -> Answer:
    """The answer, whatever its status. Seconds; `timeout` is for all of it. Raises HttpFailed."""
    request = _request("GET", join_host_port(host, port), target, headers, b"")
    with _failing(timeout):
        return await _exchange(host, port, request, tls, connect_timeout)


async def fetch(
    method: str,
    url: str,
    *,
    tls: ssl.SSLContext,
    headers: Headers = (),
    body: bytes = b"",
    connect_timeout: float = inf,
    timeout: float = inf,
) -> Answer:
    """As `get`, of a whole URL, and wherever it leads: redirects are followed. `tls` is for https."""
    location = ""
    with _failing(timeout):
        for _ in range(_MOST_REDIRECTS + 1):
            parts = _split(url, location)
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
            request = _request(method, *_addressed(parts), [*_credentials(parts), *headers], body)
            answer = await _exchange(host, port, request, tls if parts.scheme == "https" else None, connect_timeout)
            if answer.status not in _REDIRECTS or not answer.location:
                return answer
            if answer.status in _TO_GET:
                method, body = "GET", b""
            url, location = parts.geturl(), answer.location
    raise HttpFailed(f"stopped after {_MOST_REDIRECTS} redirects")


def _split(url: str, location: str) -> SplitResult:
    """Where `location` leads from `url`, or else the latter."""
    try:
        whole = urljoin(url, location)
        parts = urlsplit(whole)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise HttpFailed("not a URL") from error
    if not valid or not whole.isascii() or any(character <= " " for character in whole):
        raise HttpFailed("not a URL that can be asked")  # it may hold a secret, so it is not named
    return parts


def _addressed(parts: SplitResult) -> tuple[str, str]:
    """Whom the request is for, and for what there. What a URL says behind its last `?` goes along, even if that is nothing."""
    host = parts.netloc.rpartition("@")[2]
    target = parts.path or "/"
    return host, f"{target}?{parts.query}" if parts.query else target


def _credentials(parts: SplitResult) -> Headers:
    if parts.username is None:
        return ()
    pair = b"%b:%b" % (unquote_to_bytes(parts.username), unquote_to_bytes(parts.password or ""))
    return (("Authorization", f"Basic {b64encode(pair).decode()}"),)


def _request(method: str, host: str, target: str, headers: Headers, body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def _failing(timeout: float) -> Iterator[None]:
    """Whatever goes wrong inside is an HttpFailed."""
    try:
        with trio.fail_after(timeout):
            yield
    except trio.TooSlowError as error:
        raise HttpTimeout("timeout") from error
    except (OSError, trio.BrokenResourceError, ssl.CertificateError, UnicodeError) as error:
        raise HttpFailed(_cause(error)) from error  # the last: a name that none can have, a..b
    except httptools.HttpParserError as error:
        raise HttpFailed(f"malformed HTTP response: {error}") from error


async def _exchange(host: str, port: int, request: bytes, tls: ssl.SSLContext | None, connect_timeout: float) -> Answer:
    stream = await _connect(host, port, tls, connect_timeout)
    try:
        await stream.send_all(request)
        return await _receive(stream)
    finally:
        await trio.aclose_forcefully(stream)


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
    return Answer(parser.get_status_code(), b"".join(answer.pieces), answer.location.decode("latin-1"))


class _Parsed:
    """What httptools calls back."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self.location = b""
        self.complete = False
        self._has_head = False
        self._has_end = False  # says where it ends

    @property
    def ends_with_the_connection(self) -> bool:
        return self._has_head and not self._has_end

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._has_end |= name in (b"content-length", b"transfer-encoding")
        if name == b"location":
            self.location = value

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)
        self.size += len(body)

    def on_message_complete(self) -> None:
        self.complete = True
