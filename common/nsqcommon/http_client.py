"""HTTP requests from one daemon to another, on trio. Requests may share connections that stay open.

We don't use a client library, because nsqd makes only one request for each new topic. A library's cookies, cleverer
pool and second event-loop layer would cost some megabytes and a good part of nsqd's start-up time.
`wire/http_exchange.py` parses the responses. docs/decisions/0037-one-http.md lists all clients.
"""

from __future__ import annotations

import os
import socket
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

import trio

from nsqcommon.net import join_host_port
from nsqcommon.nsq_json import Fields, JsonError, read
from nsqcommon.wire.http_exchange import MOST_BYTES, Answer, BadResponse, Headers, ResponseReader, request_bytes

SMALL: Final = 64 * 1024  # bytes of a response that we hold without awaiting `before_large`
_READ_SIZE: Final = 64 * 1024
_MOST_REDIRECTS: Final = 10  # as in Go
_TO_GET: Final = frozenset((301, 302, 303))  # all clients switch to GET for these
_REDIRECTS: Final = _TO_GET | {307, 308}
_SECRETS: Final = frozenset(("authorization", "cookie", "cookie2", "www-authenticate"))  # the same as in Go

BeforeLarge = Callable[[], Awaitable[None]]  # returns when this response may exceed SMALL
_CLOSE: Final = ("Connection", "close")

_Server = tuple[str, int, ssl.SSLContext | None]


class HttpFailed(Exception):
    """We received no usable response. The message says why."""


class HttpTimeout(HttpFailed):
    """We received no complete response in time."""


class HttpClient:
    """Sends requests over connections that it keeps until `close_idle`.

    Each request in progress has its own connection. If none is idle, the request dials, but takes a connection that
    another request releases in the meantime. This helps with a server that accepts slowly: its kernel drops connects
    when its queue is full, and ours retries only after 1, 3 and 7 s. Meanwhile, the few accepted connections serve all
    the other requests.

    Times are in seconds. With `keeps_bodies`, a response of more than `most` bytes is an error. Without it, we read
    each response to its end and discard the body. A cancelled request closes its connection. Use a client in only one
    trio loop.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = inf,
        timeout: float = inf,
        idle_timeout: float = inf,
        keeps_bodies: bool = True,
        most: int = MOST_BYTES,
    ) -> None:
        self._connect_timeout = connect_timeout
        self._timeout = timeout  # for one whole request
        self._idle_timeout = idle_timeout  # we don't reuse connections that were idle for longer
        self._keeps_bodies = keeps_bodies
        self._most = most
        self._idle: dict[_Server, list[_Idle]] = {}
        self._dials: dict[_Server, deque[_Dial]] = {}  # connects under way, the oldest first

    @property
    def idle(self) -> int:
        """The number of idle connections."""
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
        """Send a GET and return the response, whatever its status. Raises HttpFailed."""
        request = request_bytes("GET", join_host_port(host, port), target, headers, b"")
        with _as_http_failed(self._timeout):
            return await self._ask((host, port, tls), request)

    async def fetch(
        self, method: str, url: str, *, tls: ssl.SSLContext, headers: Headers = (), body: bytes = b""
    ) -> Answer:
        """Send a request to a URL and follow redirects, over kept connections. Raises HttpFailed.

        If the server has closed a kept connection, we notice only when we use it. We then send the request again, so it
        may arrive twice.
        """
        with _as_http_failed(self._timeout):
            return await _follow_redirects(self._ask, method, url, tls=tls, headers=headers, body=body)

    async def close_idle(self) -> None:
        """Close the idle connections. Busy ones close after their response. Doesn't wait and can't be cancelled."""
        idle, self._idle = self._idle, {}
        for kept in idle.values():
            await _close_all(kept)

    async def _ask(self, server: _Server, request: bytes) -> Answer:
        while True:
            stream, was_used = await self._connection(server)
            with ResponseReader(most=self._most, keeps_body=self._keeps_bodies) as reader:
                try:
                    return await self._ask_on(stream, server, request, reader)
                except (OSError, trio.BrokenResourceError, BadResponse):
                    if reader.has_begun or not was_used:
                        raise
                    # The server closed the connection while it was idle, so try another one.

    async def _connection(self, server: _Server) -> tuple[trio.abc.Stream, bool]:
        """Return a free connection, and whether it has already served another request."""
        kept = self._idle.setdefault(server, [])
        if kept and kept[-1].since < trio.current_time() - self._idle_timeout:
            await _close_all(kept)  # the last one is the youngest, so the others are too old as well
        if kept:
            return kept.pop().stream, True
        dials = self._dials.setdefault(server, deque())
        dial = _Dial()
        dials.append(dial)
        stream = None
        try:
            with dial.scope:
                stream = await _connect(*server, self._connect_timeout)
        finally:
            if dial in dials:
                dials.remove(dial)
            if dial.released is not None and (stream is not None or not dial.scope.cancelled_caught):
                self._release(server, dial.released)  # we have our own connection by now, or have failed
        if stream is not None:
            return stream, False
        assert dial.released is not None  # only `give_up_for` cancels the dial, and it sets this
        return dial.released, True

    def _release(self, server: _Server, stream: trio.abc.Stream) -> None:
        """Give the connection to the request that has been dialling longest, or keep it if none is dialling."""
        if dials := self._dials.get(server):
            dials.popleft().give_up_for(stream)
        else:
            self._idle.setdefault(server, []).append(_Idle(stream, trio.current_time()))

    async def _ask_on(self, stream: trio.abc.Stream, server: _Server, request: bytes, reader: ResponseReader) -> Answer:
        idle = self._idle
        stays = False
        try:
            await stream.send_all(request)
            await _receive(stream, reader)
            stays = reader.is_reusable and idle is self._idle  # not after `close_idle`, which replaces `_idle`
            return reader.answer()
        finally:
            if stays:
                self._release(server, stream)
            else:
                await trio.aclose_forcefully(stream)


class _Dial:
    """One request's attempt to connect. It ends early if another request releases a connection."""

    __slots__ = ("released", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.released: trio.abc.Stream | None = None

    def give_up_for(self, stream: trio.abc.Stream) -> None:
        self.released = stream
        self.scope.cancel()


@dataclass(frozen=True, slots=True)
class _Idle:
    stream: trio.abc.Stream
    since: float


async def _close_all(kept: list[_Idle]) -> None:
    with trio.CancelScope(shield=True):
        while kept:
            await trio.aclose_forcefully(kept.pop().stream)


async def get(
    host: str,
    port: int,
    target: str,
    *,
    tls: ssl.SSLContext | None = None,
    headers: Headers = (),
    connect_timeout: float = inf,
    timeout: float = inf,
    most: int = MOST_BYTES,
) -> Answer:
    """Send a single GET and return the response, whatever its status.

    Raises HttpFailed, also if the response has more than `most` bytes.
    """
    request = request_bytes("GET", join_host_port(host, port), target, [_CLOSE, *headers], b"")
    with _as_http_failed(timeout):
        return await _exchange((host, port, tls), request, connect_timeout=connect_timeout, most=most)


async def post(
    host: str, port: int, target: str, *, name: str, tls: ssl.SSLContext | None = None, headers: Headers = ()
) -> Answer:
    """Send a single POST without a body, and return the response. Raises HttpFailed.

    We connect to `host`. `name` is the server's name, for the Host header and for TLS.
    """
    request = request_bytes("POST", join_host_port(name, port), target, [_CLOSE, *headers], b"")
    with _as_http_failed(inf):
        return await _exchange((host, port, tls), request, connect_timeout=inf, name=name)


async def fetch(
    method: str,
    url: str,
    *,
    tls: ssl.SSLContext,
    headers: Headers = (),
    body: bytes = b"",
    connect_timeout: float = inf,
    timeout: float = inf,
    most: int = MOST_BYTES,
    before_large: BeforeLarge = trio.lowlevel.checkpoint,
) -> Answer:
    """Send a single request to a URL, follow redirects, and return the last response. Raises HttpFailed.

    `tls` is for https. We await `before_large` once a response exceeds SMALL.
    """
    ask = partial(_exchange, connect_timeout=connect_timeout, most=most, before_large=before_large)
    with _as_http_failed(timeout):
        return await _follow_redirects(ask, method, url, tls=tls, headers=[_CLOSE, *headers], body=body)


async def _follow_redirects(
    ask: Callable[[_Server, bytes], Awaitable[Answer]],
    method: str,
    url: str,
    *,
    tls: ssl.SSLContext,
    headers: Headers,
    body: bytes,
) -> Answer:
    location = ""
    for _ in range(_MOST_REDIRECTS + 1):
        parts = _split(url, location)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        request = request_bytes(method, *_host_and_target(parts), [*_credentials(parts), *headers], body)
        answer = await ask((host, port, tls if parts.scheme == "https" else None), request)
        if answer.status not in _REDIRECTS or not answer.location:
            return answer
        if answer.status in _TO_GET:
            method, body = "GET", b""
        url, location = parts.geturl(), answer.location
        if not _is_same_or_below(_split(url, location).hostname or "", host):
            headers = [(name, value) for name, value in headers if name.lower() not in _SECRETS]
    raise HttpFailed(f"stopped after {_MOST_REDIRECTS} redirects")


def _is_same_or_below(host: str, parent: str) -> bool:
    """Return whether `host` is `parent` or a subdomain of it. To other hosts, a redirect drops headers with secrets."""
    return host == parent or host.endswith(f".{parent}")


@asynccontextmanager
async def open_answer(
    host: str,
    port: int,
    target: str,
    *,
    tls: ssl.SSLContext | None = None,
    headers: Headers = (),
    connect_timeout: float = inf,
    patience: float = inf,
) -> AsyncIterator[OpenAnswer]:
    """Send a single GET and yield the response. You read it piece by piece, and may leave the block at any time.

    `patience` is the timeout for each piece, in seconds. Raises HttpFailed.
    """
    request = request_bytes("GET", join_host_port(host, port), target, [_CLOSE, *headers], b"")
    with _as_http_failed(inf):
        stream = await _connect(host, port, tls, connect_timeout)
    try:
        with ResponseReader() as reader:
            answer = OpenAnswer(stream, reader, patience)
            await answer.send_request(request)
            yield answer
    finally:
        await trio.aclose_forcefully(stream)


class OpenAnswer:
    """A response whose head has arrived. Its body arrives piece by piece."""

    def __init__(self, stream: trio.abc.Stream, reader: ResponseReader, patience: float) -> None:
        self._stream = stream
        self._reader = reader
        self._patience = patience

    async def send_request(self, request: bytes) -> None:
        with _as_http_failed(self._patience):
            await self._stream.send_all(request)
            while not self._reader.has_head:
                await self._receive_piece()

    @property
    def status(self) -> int:
        return self._reader.status

    async def next_piece(self) -> bytes:
        """Return the next piece of the body, or b"" after the last one.

        Raises HttpFailed, also if the connection closes before the body is complete.
        """
        with _as_http_failed(self._patience):
            while not self._reader.body and not self._reader.is_complete:
                await self._receive_piece()
        return self._reader.take_body()

    async def _receive_piece(self) -> None:
        self._reader.receive(await self._stream.receive_some(_READ_SIZE))


def _split(url: str, location: str) -> SplitResult:
    """Resolve `location` relative to `url`, and split the result. An empty `location` means `url` itself."""
    try:
        whole = urljoin(url, location)
        parts = urlsplit(whole)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise HttpFailed("not a URL") from error
    if not valid or not whole.isascii() or any(character <= " " for character in whole):
        raise HttpFailed("not a usable HTTP URL")  # it may hold a secret, so don't quote it
    return parts


def _host_and_target(parts: SplitResult) -> tuple[str, str]:
    """Return the Host header and the target of a request."""
    host = parts.netloc.rpartition("@")[2]
    target = parts.path or "/"
    return host, f"{target}?{parts.query}" if parts.query else target


def _credentials(parts: SplitResult) -> Headers:
    if parts.username is None:
        return ()
    pair = b"%b:%b" % (unquote_to_bytes(parts.username), unquote_to_bytes(parts.password or ""))
    return (("Authorization", f"Basic {b64encode(pair).decode()}"),)


@contextmanager
def _as_http_failed(timeout: float) -> Iterator[None]:
    """Limit the time of a request, and turn each of its errors into HttpFailed."""
    try:
        with trio.fail_after(timeout):
            yield
    except trio.TooSlowError as error:
        raise HttpTimeout("timeout") from error
    # ValueError, OverflowError: an impossible host name or port.
    except (OSError, ValueError, OverflowError, trio.BrokenResourceError) as error:
        raise HttpFailed(_cause(error)) from error
    except BadResponse as error:
        raise HttpFailed(str(error)) from error


async def _exchange(
    server: _Server,
    request: bytes,
    *,
    connect_timeout: float,
    most: int = MOST_BYTES,
    before_large: BeforeLarge = trio.lowlevel.checkpoint,
    name: str = "",
) -> Answer:
    """Send a request on its own connection and return the response. Pass the server's `name` if it isn't the host."""
    stream = await _connect(*server, connect_timeout, name)
    try:
        with ResponseReader(most=most) as reader:
            await stream.send_all(request)
            await _receive(stream, reader, before_large)
            return reader.answer()
    finally:
        await trio.aclose_forcefully(stream)


def _cause(error: BaseException) -> str:
    """Return the text of the original error. trio wraps stream errors, and groups those of a name's addresses."""
    inner = error.__cause__
    if isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    cause = inner or error
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, socket.gaierror | ssl.SSLError):
        return os.strerror(cause.errno)  # the caller knows the address
    return str(cause)


async def _connect(host: str, port: int, tls: ssl.SSLContext | None, limit: float, name: str = "") -> trio.abc.Stream:
    with trio.fail_after(limit):
        stream = await trio.open_tcp_stream(host, port)
    if tls is None:
        return stream
    return trio.SSLStream(stream, tls, server_hostname=name or host, https_compatible=True)


async def _receive(
    stream: trio.abc.Stream, reader: ResponseReader, before_large: BeforeLarge = trio.lowlevel.checkpoint
) -> None:
    is_large = False
    while not reader.is_complete:
        reader.receive(await stream.receive_some(_READ_SIZE))
        if not is_large and len(reader.body) > SMALL:
            is_large = True
            await before_large()


def https_port_in(answer: bytes) -> int | None:
    """Return the HTTPS port in a daemon's refusal of plain HTTP, or None if there's none."""
    try:
        return Fields(read(answer)).integer("https_port") or None
    except JsonError:
        return None
