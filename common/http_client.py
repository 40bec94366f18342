"""Questions over HTTP, on trio: all that a daemon asks of another one. GETs may share connections that are kept.

A client library would bring redirects, cookies, a cleverer pool and a second event-loop layer into each daemon: some
megabytes and a good part of the start-up time of a broker, for one question for each new topic. The parser is the one
that serves requests (httptools).
"""

from __future__ import annotations

import os
import socket
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

import httptools
import trio

from common.net import join_host_port
from common.nsq_json import Fields, JsonError, read

MOST_BYTES: Final = 16 << 20  # of an answer, where nobody says otherwise
SMALL: Final = 64 * 1024  # bytes of an answer that are held without asking `before_large`
_MOST_BESIDE: Final = 256 * 1024  # bytes of head, of chunks' sizes and of what follows the body
_MOST_BESIDE_A_BYTE: Final = 8  # and for each byte of the body: a chunk may be as short as one
_READ_SIZE: Final = 64 * 1024
_MOST_REDIRECTS: Final = 10  # as in Go
_TO_GET: Final = frozenset((301, 302, 303))  # as every client has always understood them
_REDIRECTS: Final = _TO_GET | {307, 308}

Headers = Sequence[tuple[str, str]]
BeforeLarge = Callable[[], Awaitable[None]]  # waits until an answer may be longer than SMALL
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
    index: str = ""  # of nsqlookupd: what this answer is about has not changed as long as this is the same


class HttpClient:
    """Asks over connections that it keeps until `close_idle`: one for each request that is under way at the same time.

    A question that finds no free connection dials a new one, and takes one that another question leaves free if that
    happens first. A dial may hang for seconds where a server accepts slowly: its kernel drops what its queue has no
    room for, and ours asks again after 1, 3 and 7 s. Meanwhile the few connections that were accepted answer all the rest.

    Times are seconds. Without `keeps_bodies` answers are read to their end and have none; otherwise one of more than
    `most` bytes has failed.
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
        self._timeout = timeout  # for all of one question
        self._idle_timeout = idle_timeout  # what has been idle for longer is not used again
        self._keeps_bodies = keeps_bodies
        self._most = most
        self._idle: dict[_Place, list[_Idle]] = {}
        self._dials: dict[_Place, deque[_Dial]] = {}  # those that are under way, the oldest first

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

    async def fetch(
        self, method: str, url: str, *, tls: ssl.SSLContext, headers: Headers = (), body: bytes = b""
    ) -> Answer:
        """As the function of this name, on connections that are kept.

        One that has gone meanwhile is only noticed when it is used; what was asked then may be asked twice.
        """
        with _failing(self._timeout):
            return await _follow(self._ask, method, url, tls=tls, headers=headers, body=body)

    async def close_idle(self) -> None:
        """Those that are busy close when they have been answered. Waits for nothing, and cannot be cancelled."""
        idle, self._idle = self._idle, {}
        for kept in idle.values():
            await _close_all(kept)

    async def _ask(self, place: _Place, request: bytes) -> Answer:
        while True:
            stream, was_used = await self._connection(place)
            answer = _Parsed(keeps_body=self._keeps_bodies)
            try:
                return await self._ask_on(stream, place, request, answer)
            except (OSError, trio.BrokenResourceError, HttpFailed):
                if answer.has_begun or not was_used:
                    raise
                # It was closed while nobody looked.

    async def _connection(self, place: _Place) -> tuple[trio.abc.Stream, bool]:
        """Return a connection that nobody uses, and whether it has served another question before."""
        kept = self._idle.setdefault(place, [])
        if kept and kept[-1].since < trio.current_time() - self._idle_timeout:
            await _close_all(kept)  # the last one is the youngest
        if kept:
            return kept.pop().stream, True
        dials = self._dials.setdefault(place, deque())
        dial = _Dial()
        dials.append(dial)
        stream = None
        try:
            with dial.scope:
                stream = await _connect(*place, self._connect_timeout)
        finally:
            if dial in dials:
                dials.remove(dial)
            if dial.instead is not None and (stream is not None or not dial.scope.cancelled_caught):
                self._release(place, dial.instead)  # we have one of our own, or fail
        if stream is not None:
            return stream, False
        assert dial.instead is not None  # whatever cancels the dial gives one
        return dial.instead, True

    def _release(self, place: _Place, stream: trio.abc.Stream) -> None:
        """Give the connection to the question that has dialled for the longest time, or keep it."""
        if dials := self._dials.get(place):
            dials.popleft().give_up_for(stream)
        else:
            self._idle.setdefault(place, []).append(_Idle(stream, trio.current_time()))

    async def _ask_on(self, stream: trio.abc.Stream, place: _Place, request: bytes, answer: _Parsed) -> Answer:
        idle = self._idle
        stays = False
        try:
            await stream.send_all(request)
            await _receive(stream, answer, most=self._most)
            stays = answer.may_be_followed and idle is self._idle
            return answer.whole()
        finally:
            answer.close()
            if stays:
                self._release(place, stream)
            else:
                await trio.aclose_forcefully(stream)


class _Dial:
    """The connect of one question, which may get a free connection instead."""

    __slots__ = ("instead", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.instead: trio.abc.Stream | None = None

    def give_up_for(self, stream: trio.abc.Stream) -> None:
        self.instead = stream
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
    """A single question. The answer, whatever its status. Raises HttpFailed, also for one of more than `most` bytes."""
    request = _request("GET", join_host_port(host, port), target, [_ONLY_ONE, *headers], b"")
    with _failing(timeout):
        return await _exchange((host, port, tls), request, connect_timeout=connect_timeout, most=most)


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
    """As `get`, of a whole URL, and wherever it leads: redirects are followed. `tls` is for https."""
    ask = partial(_exchange, connect_timeout=connect_timeout, most=most, before_large=before_large)
    with _failing(timeout):
        return await _follow(ask, method, url, tls=tls, headers=[_ONLY_ONE, *headers], body=body)


async def _follow(
    ask: Callable[[_Place, bytes], Awaitable[Answer]],
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
        request = _request(method, *_addressed(parts), [*_credentials(parts), *headers], body)
        answer = await ask((host, port, tls if parts.scheme == "https" else None), request)
        if answer.status not in _REDIRECTS or not answer.location:
            return answer
        if answer.status in _TO_GET:
            method, body = "GET", b""
        url, location = parts.geturl(), answer.location
    raise HttpFailed(f"stopped after {_MOST_REDIRECTS} redirects")


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
    """A single GET whose answer may be long: read as it comes, and left whenever one has enough. Raises HttpFailed.

    `patience` is for each piece.
    """
    request = _request("GET", join_host_port(host, port), target, [_ONLY_ONE, *headers], b"")
    with _failing(inf):
        stream = await _connect(host, port, tls, connect_timeout)
    try:
        answer = OpenAnswer(stream, patience)
        try:
            await answer.begin(request)
            yield answer
        finally:
            answer.close()
    finally:
        await trio.aclose_forcefully(stream)


class OpenAnswer:
    """An answer whose head is there and whose body comes by and by."""

    def __init__(self, stream: trio.abc.Stream, patience: float) -> None:
        self._stream = stream
        self._patience = patience
        self._parsed = _Parsed()

    async def begin(self, request: bytes) -> None:
        with _failing(self._patience):
            await self._stream.send_all(request)
            while not self._parsed.has_head and await _receive_piece(self._stream, self._parsed):
                pass

    @property
    def status(self) -> int:
        return self._parsed.status

    async def receive(self) -> bytes:
        """The next piece of the body; nothing behind the last one. Raises HttpFailed, also when it breaks off."""
        with _failing(self._patience):
            while not self._parsed.body and await _receive_piece(self._stream, self._parsed):
                pass
        body, self._parsed.body = self._parsed.body, bytearray()
        return bytes(body)

    def close(self) -> None:
        self._parsed.close()


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
    """Return the Host header and the target of the request."""
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


async def _exchange(
    place: _Place,
    request: bytes,
    *,
    connect_timeout: float,
    most: int = MOST_BYTES,
    before_large: BeforeLarge = trio.lowlevel.checkpoint,
) -> Answer:
    """On a connection of its own."""
    stream = await _connect(*place, connect_timeout)
    answer = _Parsed()
    try:
        await stream.send_all(request)
        await _receive(stream, answer, most=most, before_large=before_large)
        return answer.whole()
    finally:
        answer.close()
        await trio.aclose_forcefully(stream)


def _cause(error: BaseException) -> str:
    """trio wraps: one error for all addresses of a name, one for whatever broke a stream."""
    inner = error.__cause__
    if isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    cause = inner or error
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, socket.gaierror | ssl.SSLError):
        return os.strerror(cause.errno)  # without where: whoever asked knows
    return str(cause)


async def _connect(host: str, port: int, tls: ssl.SSLContext | None, limit: float) -> trio.abc.Stream:
    with trio.fail_after(limit):
        stream = await trio.open_tcp_stream(host, port)
    if tls is None:
        return stream
    return trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)


async def _receive(
    stream: trio.abc.Stream,
    answer: _Parsed,
    *,
    most: int = MOST_BYTES,
    before_large: BeforeLarge = trio.lowlevel.checkpoint,
) -> None:
    is_large = False
    while await _receive_piece(stream, answer):
        if max(len(answer.body), answer.announced) > most:
            raise HttpFailed(f"response of more than {most} bytes")
        if not is_large and len(answer.body) > SMALL:
            is_large = True
            await before_large()


async def _receive_piece(stream: trio.abc.Stream, answer: _Parsed) -> bool:
    """False when there is nothing more to come."""
    if answer.complete:
        return False
    data = await stream.receive_some(_READ_SIZE)
    if data:
        answer.feed(data)
        if answer.beside > _MOST_BESIDE + _MOST_BESIDE_A_BYTE * answer.size:
            raise HttpFailed("response with too much beside its body")
    elif not answer.ends_with_the_connection:
        raise HttpFailed("connection closed within the response")
    return bool(data)


class _Parsed:
    """An answer as it comes; what begins with `on_` is what httptools calls back.

    It and its parser hold each other, so `close` it: the garbage collector counts objects, not the megabytes in them,
    and may come too late.
    """

    def __init__(self, *, keeps_body: bool = True) -> None:
        self.body = bytearray()  # in one piece: chunks of two bytes each would take 20 times their size
        self.size = 0  # of the body so far, kept or not
        self.beside = 0  # bytes that were received and are not the body's
        self.announced = 0  # its Content-Length
        self.status = 0
        self.location = b""
        self.index = b""
        self.has_begun = False  # a byte of it is there
        self.has_head = False
        self.complete = False
        self._keeps_body = keeps_body
        self._parser: Any = httptools.HttpResponseParser(self)
        self._messages = 0
        self._stays_open = False
        self._has_end = False  # says where it ends

    def feed(self, data: bytes | bytearray) -> None:
        """Raises HttpParserError."""
        self.has_begun = True
        self.beside += len(data)
        self._parser.feed_data(data)

    def close(self) -> None:
        self._parser = None

    def whole(self) -> Answer:
        return Answer(self.status, bytes(self.body), self.location.decode("latin-1"), self.index.decode("latin-1"))

    @property
    def ends_with_the_connection(self) -> bool:
        return self.has_head and not self._has_end

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
        elif name == b"x-nsq-index":
            self.index = value
        elif name == b"content-length" and self._keeps_body:
            self.announced = int(value)  # the parser has checked it

    def on_headers_complete(self) -> None:
        self.has_head = True
        self.status = int(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self.beside -= len(body)
        self.size += len(body)
        if self._keeps_body:
            self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
        self._stays_open = bool(self._parser.should_keep_alive())  # afterwards the parser does not know any more


def https_port_in(answer: bytes) -> int | None:
    """Return the port that a daemon of ours which serves no plain HTTP names in its refusal."""
    try:
        return Fields(read(answer)).integer("https_port") or None
    except JsonError:
        return None
