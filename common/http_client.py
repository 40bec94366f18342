"""Questions over HTTP, on trio: all that a daemon asks of another one. GETs may share connections that are kept.

A client library would bring redirects, cookies, a cleverer pool and a second event-loop layer into each daemon: some
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
_ONLY_ONE: Final = ("Connection", "close")

_Place = tuple[str, int, ssl.SSLContext | None]


class HttpFailed(Exception):
    """There is no answer. The message says why."""


class HttpTimeout(HttpFailed):
    """There is none in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    location: str = ""  # where else to ask


class HttpClient:
    """As many connections as there are questions at once; between questions they stay until `close_idle`. Seconds."""

    def __init__(self, *, connect_timeout: float = inf, timeout: float = inf) -> None:
        self._connect_timeout = connect_timeout
        self._timeout = timeout  # for all of one question
        self._idle: dict[_Place, list[trio.abc.Stream]] = {}

    @property
    def idle(self) -> int:
        """How many connections wait for a question."""
        return sum(map(len, self._idle.values()))

    async def get(
        self,
        host: str,
        port: int,
        target: str,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Headers = (),
    ) -> Answer:
        """The answer, whatever its status. Raises HttpFailed."""
        request = _request("GET", join_host_port(host, port), target, headers, b"")
        with _failing(self._timeout):
            return await self._ask((host, port, tls), request)

    async def close_idle(self) -> None:
        """Those that are busy close when they have been answered. Waits for nothing, and cannot be cancelled."""
        idle, self._idle = self._idle, {}
        with trio.CancelScope(shield=True):
            for streams in idle.values():
                for stream in streams:
                    await trio.aclose_forcefully(stream)

    async def _ask(self, place: _Place, request: bytes) -> Answer:
        kept = self._idle.setdefault(place, [])
        while kept:
            answer = _Parsed()
            try:
                return await self._ask_on(kept.pop(), place, request, answer)
            except (OSError, trio.BrokenResourceError, HttpFailed):
                if answer.has_begun:
                    raise
                # It was closed while nobody looked. Asking twice does no harm: it is a GET.
        stream = await _connect(*place, self._connect_timeout)
        return await self._ask_on(stream, place, request, _Parsed())

    async def _ask_on(self, stream: trio.abc.Stream, place: _Place, request: bytes, answer: _Parsed) -> Answer:
        idle = self._idle
        stays = False
        try:
            await stream.send_all(request)
            await _receive(stream, answer)
            stays = answer.may_be_followed and idle is self._idle
            return answer.whole()
        finally:
            if stays:
                idle[place].append(stream)
            else:
                await trio.aclose_forcefully(stream)


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
    """A single question. The answer, whatever its status. Raises HttpFailed."""
    request = _request("GET", join_host_port(host, port), target, [_ONLY_ONE, *headers], b"")
    with _failing(timeout):
        return await _exchange((host, port, tls), request, connect_timeout)


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
            request = _request(method, *_addressed(parts), [_ONLY_ONE, *_credentials(parts), *headers], body)
            answer = await _exchange((host, port, tls if parts.scheme == "https" else None), request, connect_timeout)
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
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
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
    # ValueError: what cannot be a host's name at all, or a port.
    except (OSError, ValueError, OverflowError, trio.BrokenResourceError) as error:
        raise HttpFailed(_cause(error)) from error
    except httptools.HttpParserError as error:
        raise HttpFailed(f"malformed HTTP response: {error}") from error


async def _exchange(place: _Place, request: bytes, connect_timeout: float) -> Answer:
    """On a connection of its own."""
    stream = await _connect(*place, connect_timeout)
    answer = _Parsed()
    try:
        await stream.send_all(request)
        await _receive(stream, answer)
    finally:
        await trio.aclose_forcefully(stream)
    return answer.whole()


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


async def _receive(stream: trio.abc.Stream, answer: _Parsed) -> None:
    while not answer.complete:
        data = await stream.receive_some(_READ_SIZE)
        if not data:
            if answer.ends_with_the_connection:
                return
            raise HttpFailed("connection closed within the response")
        answer.feed(data)
        if answer.size > _MOST_BYTES:
            raise HttpFailed(f"response of more than {_MOST_BYTES} bytes")


class _Parsed:
    """An answer as it comes; what begins with `on_` is what httptools calls back."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self.location = b""
        self.has_begun = False  # a byte of it is there
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._messages = 0
        self._stays_open = False
        self._has_head = False
        self._has_end = False  # says where it ends

    def feed(self, data: bytes | bytearray) -> None:
        """Raises HttpParserError."""
        self.has_begun = True
        self._parser.feed_data(data)

    def whole(self) -> Answer:
        return Answer(int(self._parser.get_status_code()), b"".join(self.pieces), self.location.decode("latin-1"))

    @property
    def ends_with_the_connection(self) -> bool:
        return self._has_head and not self._has_end

    @property
    def may_be_followed(self) -> bool:
        """By another one on this connection; not where the server says more than it was asked."""
        return self._stays_open and self._messages == 1

    def on_message_begin(self) -> None:
        self._messages += 1

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
        self._stays_open = bool(self._parser.should_keep_alive())  # afterwards the parser does not know any more
