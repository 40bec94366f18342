"""NSQ's way of answering over HTTP, as one ASGI application: routes, arguments, answers, errors, the log line.

nsqd and nsqlookupd use all of it. Its parts (`parse_query`, `Response`, `wire_head`) also serve code that writes to
sockets without ASGI. This module knows neither what an endpoint does nor which server runs the application.

Routing follows the router of NSQ's releases: a path that exists only for another method is 405, one that nearly matches
a route is redirected (see routes.py), and any other path is 404.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import lru_cache
from html import escape
from http import HTTPStatus
from operator import itemgetter
from time import perf_counter_ns, time
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote, unquote_to_bytes

from nsqcommon.net import format_name
from nsqcommon.nsq_json import dumps
from nsqcommon.options import format_duration
from nsqcommon.routes import RouteTable

if TYPE_CHECKING:
    from logging import Logger

    from nsqcommon.wire.unfinished import UnfinishedBodies

# What ASGI gives to an application; the values have no common type.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Headers = tuple[tuple[bytes, bytes], ...]

JSON: Final = (b"content-type", b"application/json; charset=utf-8")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
HTML: Final = (b"content-type", b"text/html; charset=utf-8")
# go-nsq reads this header to tell a bare object from the envelope of NSQ before 1.0.
V1: Final = (b"x-nsq-content-type", b"nsq; version=1.0")

# Our own entries of the ASGI scope.
#
# A function that ends the connection at once.
ABORT: Final = "nsq.abort"
# Set when the request must not be answered after its peer has half-closed the connection (`Request.wait_until_gone`).
ENDS_WITH_PEER: Final = "nsq.ends_with_peer"
# Set when the peer has half-closed the connection and may still get its answer.
PEER_ENDED: Final = "nsq.peer_ended"
# The name in the certificate that the peer has shown (`Request.common_name`).
COMMON_NAME: Final = "nsq.common_name"
# A function that refuses a request whose head breaks a rule, and ends the connection.
REFUSE: Final = "nsq.refuse"
# Set when the peer has half-closed the connection before the body was complete.
CUT_SHORT: Final = "nsq.cut_short"

# Bytes of a request's body that are discarded after an answer that did not wait for the body. Closing a socket with
# unread data makes the kernel send a reset, and a client that is still writing would never see the answer.
_MOST_TO_DROP: Final = 8 * 1024 * 1024

_PIECE: Final = 256 << 10  # bytes of a body that are sent at once
_MOST_ARGUMENTS: Final = 1000  # in a query
_BAD_QUERY: Final = re.compile(rb";|%(?![0-9A-Fa-f]{2})")
PHRASES: Final = {413: b"Request Entity Too Large"}  # Python changed this phrase in 3.13, Go did not


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """An answer. `sniffed` follows Content-Length, where Go puts a content type that it has guessed itself."""

    status: int = 200
    body: bytes = b""
    headers: Headers = ()
    sniffed: tuple[bytes, bytes] | None = None
    close: bool = False  # end the connection, because the rest of the request will not be read


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """An answer that is made while it is sent.

    `next_piece` returns None at the end. `close` is called exactly once, however the answer ends.
    """

    headers: Headers
    next_piece: Callable[[], Awaitable[bytes | None]]
    close: Callable[[], Awaitable[None]]
    status: int = 200


class HttpError(Exception):
    """Raised or returned by a handler to answer with `{"message":"<code>"}`."""

    def __init__(
        self, status: int, code: str, *, close: bool = False, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code
        self.close = close
        self.details = details  # further members beside `message`

    @property
    def response(self) -> Response:
        if self.details:
            return Response(self.status, dumps({"message": self.code, **self.details}), (JSON, V1), close=self.close)
        return _error_response(self.status, self.code, self.close)


class ClientGone(Exception):
    """The peer left before its request was complete, so nobody can be answered."""


@lru_cache(maxsize=256)
def _error_response(status: int, code: str, close: bool) -> Response:
    return Response(status, dumps({"message": code}), (JSON, V1), close=close)


def text(content: str | bytes) -> Response:
    """Return a text with NSQ's header and, unless it is empty, the type that Go would guess."""
    body = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    return Response(body=body, headers=(V1,), sniffed=TEXT if body else None)


def json(value: object) -> Response:
    """Return a value as JSON with NSQ's header."""
    return Response(body=dumps(value), headers=(JSON, V1))


def plain(content: str, *, status: int = 200) -> Response:
    """Return a text without NSQ's header, as `/ping` answers."""
    return Response(status, content.encode(), sniffed=TEXT)


EMPTY: Final = text("")


def wire_head(response: Response, *, date: bytes, version: bytes = b"1.1", connection: bytes = b"") -> bytes:
    """Return status line and headers, spelled and ordered as Go does."""
    lines = [b"HTTP/%s %d %s" % (version, response.status, phrase(response.status))]
    lines += [b"%s: %s" % (canonical(name), value) for name, value in response_headers(response, date=date)]
    if connection:
        lines.append(b"Connection: " + connection)
    return b"\r\n".join([*lines, b"", b""])


def response_headers(response: Response, *, date: bytes = b"") -> list[tuple[bytes, bytes]]:
    """Return the headers in Go's order, with names in lower case."""
    headers = sorted(response.headers, key=itemgetter(0))
    if date:
        headers.append((b"date", date))
    headers.append((b"content-length", b"%d" % len(response.body)))
    if response.sniffed is not None:
        headers.append(response.sniffed)
    return headers


@lru_cache(maxsize=256)
def canonical(name: bytes) -> bytes:
    """Spell a header name as Go does: `x-nsq-content-type` → `X-Nsq-Content-Type`."""
    return b"-".join(word.capitalize() for word in name.split(b"-"))


def phrase(status: int) -> bytes:
    """Return the reason phrase of a status, as Go words it."""
    return PHRASES.get(status) or HTTPStatus(status).phrase.encode()


class HttpDate:
    """The value of the Date header, formatted once per second."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._second = 0
        self._text = b""

    def __call__(self) -> bytes:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text


def parse_query(query: bytes) -> dict[str, str]:
    """Return the arguments, the first of each name. Strict as in Go: one bad escape or `;` spoils the whole query.

    Bytes that are not UTF-8 become lone surrogates, so that two different arguments are never equal. A query with more
    than `_MOST_ARGUMENTS` is refused, because reading a million of them would delay everybody.
    """
    if query.count(b"&") >= _MOST_ARGUMENTS or _BAD_QUERY.search(query):
        raise HttpError(400, "INVALID_REQUEST")
    arguments: dict[str, str] = {}
    for piece in query.split(b"&"):
        if piece:
            name, _, value = piece.partition(b"=")
            arguments.setdefault(_unescape(name), _unescape(value))
    return arguments


def query_values(query: bytes, name: str) -> list[str]:
    """Return all values of one argument of a query that `parse_query` accepts."""
    return all_query_values(query).get(name, [])


def all_query_values(query: bytes) -> dict[str, list[str]]:
    """Return all values of each argument of a query that `parse_query` accepts."""
    values: dict[str, list[str]] = {}
    for piece in query.split(b"&"):
        if piece:
            name, _, value = piece.partition(b"=")
            if name:
                values.setdefault(_unescape(name), []).append(_unescape(value))
    return values


def _unescape(escaped: bytes) -> str:
    if b"%" not in escaped and b"+" not in escaped:
        return escaped.decode("utf-8", "surrogateescape")
    return unquote_to_bytes(escaped.replace(b"+", b" ")).decode("utf-8", "surrogateescape")


class Request:
    """One request, as a handler sees it."""

    def __init__(self, scope: Scope, receive: Receive, unfinished: UnfinishedBodies | None = None) -> None:
        self._receive = receive
        self._unfinished = unfinished
        self._reading = False
        self._complete = False  # all of the body has been read
        self._scope = scope
        self.is_gone = False  # set when `wait_until_lost` or `wait_until_gone` has returned
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        raw_path: bytes = scope.get("raw_path") or quote(self.path).encode()
        self.uri = (raw_path + b"?" + self.query_string if self.query_string else raw_path).decode("latin-1")
        self.fields: list[tuple[bytes, bytes]] = list(scope["headers"])  # a name may come more than once
        self.headers: dict[bytes, bytes] = dict(self.fields)
        client = scope.get("client")
        self.remote = format_name(tuple(client)) if client else "@"
        self.common_name: str = scope.get(COMMON_NAME, "")  # in the peer's certificate; "" without one
        self.is_secure = scope.get("scheme") == "https"
        self.words: Mapping[str, str] = {}  # the pieces of the path that matched the route's `{name}`s
        self.is_limited = False  # the answer must be limited to the topic that the query names
        self.holder = ""  # the name of the holder of the token or certificate, if that was asked for
        self.may_operate = True  # whether the request may be about messages of others
        self.may_lose = True  # whether the request may have an effect that loses messages

    def query(self) -> dict[str, str]:
        """Return the arguments of the query; see `parse_query`."""
        return parse_query(self.query_string)

    @property
    def content_length(self) -> int | None:
        """The announced length; None for a chunked body. The server has checked that it is a number."""
        length = self.headers.get(b"content-length")
        return None if length is None else int(length)

    @property
    def withholds_body(self) -> bool:
        """Whether the peer still waits for a "100 Continue", so that it is its choice whether to send a body at all."""
        return self.headers.get(b"expect", b"").lower() == b"100-continue" and not self._reading

    async def read(self, limit: int) -> bytes:
        """Return the body, or its first `limit` + 1 bytes if it is longer than `limit`.

        A client that sent `Expect: 100-continue` is told to go on by this call. Raises ClientGone if the client leaves
        meanwhile, and HttpError if it has half-closed the connection too early and may still get an answer.
        """
        pieces: list[bytes] = []
        size = 0
        async for piece in self.pieces(limit):
            pieces.append(piece)
            size += len(piece)
            self.hold_body(size)
        return b"".join(pieces)[: limit + 1]

    async def pieces(self, limit: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, under the rules of `read`. The last piece may exceed `limit`."""
        self._reading = True
        size = 0
        while not self._complete and size <= limit:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece: bytes = message.get("body", b"")
            size += len(piece)
            self._complete = not message.get("more_body", False)
            if not self._complete and self._is_cut_short:
                raise HttpError(500, "INTERNAL_ERROR", close=True)
            yield piece

    def hold_body(self, size: int) -> None:
        """Note that the body uses `size` bytes of memory by now; for a handler that reads it in pieces."""
        if self._unfinished is not None:
            self._unfinished.hold(self, size)

    def give_up_body(self) -> None:
        """End the connection because others need the memory. The reader of the body gets ClientGone."""
        self.abort()

    def forget_body(self) -> None:
        """Note that the body uses no memory any more."""
        if self._unfinished is not None:
            self._unfinished.release(self)

    async def drop_rest(self) -> None:
        """Read and discard the rest of the body, up to `_MOST_TO_DROP` bytes."""
        dropped = 0
        while not self._complete and not self._is_cut_short and dropped < _MOST_TO_DROP:
            message = await self._receive()
            dropped += len(message.get("body", b""))
            self._complete = message["type"] == "http.disconnect" or not message.get("more_body", False)

    @property
    def _is_cut_short(self) -> bool:
        return CUT_SHORT in self._scope

    def abort(self) -> None:
        """End the connection at once; the part of the answer that was sent is visibly incomplete."""
        abort: Callable[[], None] | None = self._scope.get(ABORT)
        if abort is not None:
            abort()

    async def wait_until_lost(self) -> None:
        """Return when nothing can be sent to the peer any more."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True

    async def wait_until_gone(self) -> None:
        """Return when the peer has closed, or half-closed, the connection.

        For a handler that lets its client wait; the handler cancels this call when it has an answer.
        """
        # A half-closed peer normally still gets its answer. A long wait, however, must not go on for a peer that has
        # left.
        self._scope[ENDS_WITH_PEER] = True
        if PEER_ENDED in self._scope:  # the peer half-closed before this wait began
            self.abort()
        await self.wait_until_lost()


Handler = Callable[[Request], Awaitable[Response | Stream]]
# Watches a connection while an answer is streamed; the second argument returns the number of pieces sent so far.
Attend = Callable[[Request, Callable[[], int]], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A route whose `path` is exact or has words: `/config/{option}`."""

    method: str
    path: str
    handler: Handler = field(repr=False)
    logged: bool = True


R = TypeVar("R", bound=Route)


class CrossOrigin(Protocol):
    """Lets pages of other sites use some paths: see common/nsqcommon/cors.py."""

    def headers(self, request: Request) -> Headers:
        """Return what is added to the answer to this request."""

    def preflight(self, request: Request) -> Headers:
        """Return what is added to the answer if a browser asks whether it may make a request."""


class HttpApi(Generic[R]):
    """The ASGI application of a set of routes.

    `linger` waits while the rest of a refused body is discarded: it gets the discarding as a coroutine function and
    bounds its time. Without `linger` nothing is discarded. `attend` notices that the peer of a stream has left or takes
    nothing. `always` is the answer to every request, whatever the routes are. `guard` may refuse a request for a route
    by returning an answer of its own. `cors` says which answers pages of other sites may read. `unfinished` bounds the memory that the bodies of all requests hold.
    """

    def __init__(
        self,
        routes: Iterable[R],
        *,
        log: Logger,
        linger: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] | None = None,
        attend: Attend | None = None,
        always: Response | None = None,
        guard: Callable[[Request, R], Response | None] | None = None,
        cors: CrossOrigin | None = None,
        unfinished: UnfinishedBodies | None = None,
    ) -> None:
        self._cors = cors
        self._attend = attend
        self._unfinished = unfinished
        self.routes = tuple(routes)
        self._table = RouteTable(self.routes)
        self._always = always
        self._guard = guard
        self._log = log
        self._linger = linger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"this application speaks HTTP only, not {scope['type']}")
        started = perf_counter_ns()
        request = Request(scope, receive, self._unfinished)
        try:
            response, logged = await self._answer(request)
        except ClientGone:
            return
        if self._cors is not None and (more := self._cors.headers(request)):
            response = replace(response, headers=(*response.headers, *more))
        # HTTP/1.0 could not tell where a streamed answer ends.
        if isinstance(response, Stream) and scope.get("http_version") == "1.0":
            await response.close()
            response = HttpError(505, "HTTP_VERSION_NOT_SUPPORTED").response
        if isinstance(response, Stream):
            await self._stream(request, response, send)
        else:
            await self._send(request, response, send)
        if logged:
            duration = format_duration(perf_counter_ns() - started)
            self._log.info("%d %s %s (%s) %s", response.status, request.method, request.uri, request.remote, duration)

    async def _answer(self, request: Request) -> tuple[Response | Stream, bool]:
        """Return the answer, and whether NSQ logs it."""
        if self._always is not None:
            return self._always, False
        found = self._table.find(request.method, request.path)
        if found is not None:
            route, request.words = found
            if self._guard is not None and (refusal := self._guard(request, route)) is not None:
                return refusal, True
            return await self._handle(route.handler, request), route.logged
        target = self._table.redirect(request.method, request.path)
        if target is not None:
            return _redirect(request, target), False
        allowed = self._table.allowed(request.path)
        if not allowed:
            return HttpError(404, "NOT_FOUND").response, True
        allow = (b"allow", ", ".join(allowed).encode())
        if request.method == "OPTIONS":
            more = self._cors.preflight(request) if self._cors is not None else ()
            return Response(headers=(allow, *more)), False
        refusal = HttpError(405, "METHOD_NOT_ALLOWED").response
        return Response(refusal.status, refusal.body, (allow, *refusal.headers)), True

    async def _handle(self, handler: Handler, request: Request) -> Response | Stream:
        try:
            return await handler(request)
        except HttpError as error:
            return error.response
        except ClientGone:
            raise
        except Exception as error:  # a bug of ours must not end the connection: NSQ answers 500, and so do we
            self._log.exception("panic in HTTP handler - %s", error)
            return HttpError(500, "INTERNAL_ERROR").response
        finally:
            request.forget_body()

    async def _send(self, request: Request, response: Response, send: Send) -> None:
        headers = response_headers(response)
        close = response.close or request.withholds_body
        if close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if close and self._linger is not None:
            await _send_in_pieces(response.body, send)
            await self._linger(request.drop_rest)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif len(response.body) <= _PIECE:
            await send({"type": "http.response.body", "body": response.body, "more_body": False})
        else:
            await _send_in_pieces(response.body, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, request: Request, stream: Stream, send: Send) -> None:
        sent = 0
        attend = self._attend or _look_away
        try:
            async with attend(request, lambda: sent):
                await send({"type": "http.response.start", "status": stream.status, "headers": list(stream.headers)})
                while (piece := await stream.next_piece()) is not None and not request.is_gone:
                    await _send_in_pieces(piece, send)
                    sent += 1
                if not request.is_gone:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:  # the peer sees that the answer is incomplete
            self._log.exception("an answer was broken off - %s", error)
            request.abort()
            await request.wait_until_lost()
        finally:
            await stream.close()


async def _send_in_pieces(body: bytes, send: Send) -> None:
    """Send a body that may have many megabytes: a server that gets it whole copies all that the peer has not taken."""
    for start in range(0, max(1, len(body)), _PIECE):
        if start:
            await asyncio.sleep(0)  # a peer that takes everything at once never makes `send` wait
        await send({"type": "http.response.body", "body": body[start : start + _PIECE], "more_body": True})


@asynccontextmanager
async def _look_away(request: Request, sent: Callable[[], int]) -> AsyncIterator[None]:
    yield


def _redirect(request: Request, path: str) -> Response:
    # Releases of NSQ redirect methods other than GET with 307; only newer versions of their router send 308.
    location = quote(path, safe="/:@!$&'()*+,;=~")
    if request.query_string:
        location += "?" + request.query_string.decode("latin-1")
    header = (b"location", location.encode("latin-1"))
    if request.method != "GET":
        return Response(307, headers=(header,))
    link = escape(location).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    body = f'<a href="{link}">Moved Permanently</a>.\n\n'
    return Response(301, body.encode("latin-1"), (HTML, header))


def truth(arguments: Mapping[str, str], name: str) -> bool:
    """Return a boolean argument: `false` and `0` are False; anything else, and no argument, is True."""
    return arguments.get(name) not in ("false", "0")
