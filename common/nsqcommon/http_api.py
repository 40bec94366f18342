"""HTTP as NSQ's daemons serve it, in an ASGI application: routes, arguments, responses, errors, the log line.

nsqd and nsqlookupd use all of it. Some parts (`parse_query`, `Response`, `wire_head`) also serve code that writes to
sockets without ASGI. This module depends neither on the endpoints nor on the server that runs the application.

nsqadmin uses Starlette instead. These two daemons don't, because it costs both of them 5 to 10 % of their start-up time
or idle memory: see bench/results/starlette-2026-11-28.md.

Routing follows the router in NSQ's releases: a path that exists only for another method gets 405, a path that nearly
matches a route is redirected (see routes.py), and any other path gets 404.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import lru_cache, partial
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
from nsqcommon.slices import Slices

if TYPE_CHECKING:
    from logging import Logger

    from nsqcommon.wire.unfinished import UnfinishedBodies

# The types of an ASGI application; the values have no common type.
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

# Our own entries in the ASGI scope.
#
# A function that aborts the connection.
ABORT: Final = "nsq.abort"
# Set if the request needs no response once its peer has half-closed the connection (`Request.wait_until_gone`).
ENDS_WITH_PEER: Final = "nsq.ends_with_peer"
# Set when the peer has half-closed the connection. It may still get its response.
PEER_ENDED: Final = "nsq.peer_ended"
# The common name in the peer's certificate (`Request.common_name`).
COMMON_NAME: Final = "nsq.common_name"
# A function that refuses a request with a bad head and ends the connection.
REFUSE: Final = "nsq.refuse"
# Set when the peer has half-closed the connection before the body was complete.
CUT_SHORT: Final = "nsq.cut_short"

# Bytes of a request's body that we read and discard after a response that didn't wait for it. If we closed a socket
# with unread data, the kernel would send a reset, and a client that is still writing would never see the response.
_MOST_TO_DISCARD: Final = 8 * 1024 * 1024

_PIECE: Final = 256 << 10  # bytes of a body per send
_MOST_ARGUMENTS: Final = 1000  # in a query
_BAD_QUERY: Final = re.compile(rb";|%(?![0-9A-Fa-f]{2})")
PHRASES: Final = {413: b"Request Entity Too Large"}  # Python changed this phrase in 3.13, Go didn't


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """A response. The header `sniffed` goes after Content-Length, where Go puts a content type that it has guessed."""

    status: int = 200
    body: bytes = b""
    headers: Headers = ()
    sniffed: tuple[bytes, bytes] | None = None
    close: bool = False  # end the connection: we won't read the rest of the request


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A response that we generate while we send it.

    `next_piece` returns None at the end. `close` is called exactly once, however the response ends.
    """

    headers: Headers
    next_piece: Callable[[], Awaitable[bytes | None]]
    close: Callable[[], Awaitable[None]]
    status: int = 200


class HttpError(Exception):
    """An error response with the body `{"message":"<code>"}`. Raise it in a handler, or return its `response`."""

    def __init__(
        self, status: int, code: str, *, close: bool = False, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code
        self.close = close
        self.details = details  # more members besides `message`

    @property
    def response(self) -> Response:
        if self.details:
            return Response(self.status, dumps({"message": self.code, **self.details}), (JSON, V1), close=self.close)
        return _error_response(self.status, self.code, self.close)


class ClientGone(Exception):
    """The peer left before its request was complete, so no one would read a response."""


@lru_cache(maxsize=256)
def _error_response(status: int, code: str, close: bool) -> Response:
    return Response(status, dumps({"message": code}), (JSON, V1), close=close)


def text(content: str | bytes) -> Response:
    """Return a text response with NSQ's header and, unless it is empty, the content type that Go would guess."""
    body = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    return Response(body=body, headers=(V1,), sniffed=TEXT if body else None)


def json(value: object) -> Response:
    """Return a JSON response with NSQ's header."""
    return Response(body=dumps(value), headers=(JSON, V1))


def plain(content: str, *, status: int = 200) -> Response:
    """Return a text response without NSQ's header, as for `/ping`."""
    return Response(status, content.encode(), sniffed=TEXT)


EMPTY: Final = text("")


def wire_head(response: Response, *, date: bytes, version: bytes = b"1.1", connection: bytes = b"") -> bytes:
    """Return the status line and the headers, spelled and ordered as in Go."""
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
    """Return the reason phrase of a status, in Go's words."""
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
    """Return the first value of each argument. Raises HttpError for a bad query.

    As in Go, one bad escape or `;` makes the whole query bad. Bytes that aren't UTF-8 become lone surrogates, so
    different arguments stay different. We refuse more than `_MOST_ARGUMENTS`, because parsing a million of them would
    delay all other clients.
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
    """Return all values of one argument. The query must be one that `parse_query` accepts."""
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
        self.fields: list[tuple[bytes, bytes]] = list(scope["headers"])  # the same name may come twice
        self.headers: dict[bytes, bytes] = dict(self.fields)
        client = scope.get("client")
        self.remote = format_name(tuple(client)) if client else "@"
        self.common_name: str = scope.get(COMMON_NAME, "")  # in the peer's certificate, or ""
        self.is_secure = scope.get("scheme") == "https"
        self.words: Mapping[str, str] = {}  # the path segments for the route's `{name}`s
        self.is_limited = False  # limit the response to the topic in the query
        self.holder = ""  # owner of the token or certificate, if we check them
        self.may_act_for_others = True  # may act on messages of other clients
        self.may_discard = True  # may do things that lose messages

    def query(self) -> dict[str, str]:
        """Parse the query with `parse_query`."""
        return parse_query(self.query_string)

    @property
    def content_length(self) -> int | None:
        """The value of Content-Length, or None without one. The server has checked that it's a number."""
        length = self.headers.get(b"content-length")
        return None if length is None else int(length)

    @property
    def awaits_continue(self) -> bool:
        """Whether the peer still waits for a "100 Continue", and so may never send its body."""
        return self.headers.get(b"expect", b"").lower() == b"100-continue" and not self._reading

    async def read(self, limit: int) -> bytes:
        """Return the body, or its first `limit` + 1 bytes if it is longer than `limit`.

        If the client sent `Expect: 100-continue`, this call makes it continue. Raises ClientGone if the client leaves.
        Raises HttpError if it half-closes the connection too early, because it can still read a response.
        """
        pieces: list[bytes] = []
        size = 0
        async for piece in self.pieces(limit):
            pieces.append(piece)
            size += len(piece)
            self.hold_body(size)
        return b"".join(pieces)[: limit + 1]

    async def pieces(self, limit: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, by the same rules as `read`. The last piece may exceed `limit`."""
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
        """Record that the body now uses `size` bytes of memory. Call it if your handler reads in pieces."""
        if self._unfinished is not None:
            self._unfinished.hold(self, size)

    def give_up_body(self) -> None:
        """Abort the connection to free its memory for others. A handler that reads the body then gets ClientGone."""
        self.abort()

    def release_body(self) -> None:
        """Record that the body no longer uses memory."""
        if self._unfinished is not None:
            self._unfinished.release(self)

    async def discard_rest(self) -> None:
        """Read and discard the rest of the body, up to `_MOST_TO_DISCARD` bytes."""
        discarded = 0
        while not self._complete and not self._is_cut_short and discarded < _MOST_TO_DISCARD:
            message = await self._receive()
            discarded += len(message.get("body", b""))
            self._complete = message["type"] == "http.disconnect" or not message.get("more_body", False)

    @property
    def _is_cut_short(self) -> bool:
        return CUT_SHORT in self._scope

    def abort(self) -> None:
        """Abort the connection, so that the peer sees that the response is incomplete."""
        abort: Callable[[], None] | None = self._scope.get(ABORT)
        if abort is not None:
            abort()

    async def wait_until_lost(self) -> None:
        """Wait until we can no longer send to the peer."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True

    async def wait_until_gone(self) -> None:
        """Wait until the peer has closed, or half-closed, the connection.

        Use it in a handler that keeps its client waiting, and cancel this call when you have an answer.
        """
        # A half-closed peer normally still gets its response. But a peer that has left for good looks the same, and we
        # must not keep waiting for it.
        self._scope[ENDS_WITH_PEER] = True
        if PEER_ENDED in self._scope:  # the peer half-closed before this wait began
            self.abort()
        await self.wait_until_lost()


Handler = Callable[[Request], Awaitable[Response | Stream]]
# Watches a connection while a response is streamed; the second argument returns the number of pieces sent so far.
Attend = Callable[[Request, Callable[[], int]], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """A route. Its `path` is exact or has placeholders in braces: `/config/{option}`."""

    method: str
    path: str
    handler: Handler = field(repr=False)
    logged: bool = True


R = TypeVar("R", bound=Route)


class CrossOrigin(Protocol):
    """Allows pages of other sites to use some paths; see cors.py."""

    def headers(self, request: Request) -> Headers:
        """Return headers to add to the response to this request."""

    def preflight(self, request: Request) -> Headers:
        """Return headers to add to the response if a browser asks whether it may send a request."""


class HttpApi(Generic[R]):
    """The ASGI application of a set of routes.

    `linger` receives a coroutine function that discards the rest of a refused body, and runs it for a limited time;
    without `linger`, we discard nothing. `attend` notices when the peer of a stream leaves or stops reading. `always`
    is the response to every request, whatever the routes. `guard` may refuse a request for a route by returning a
    response. `cors` decides which responses pages of other sites may read. `unfinished` limits the memory of all
    request bodies together.
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
        # In HTTP/1.0, the peer couldn't see where a streamed response ends.
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
        """Return the response, and whether NSQ would log the request."""
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
        except Exception as error:  # a bug must not end the connection: like NSQ, we respond with 500
            self._log.exception("panic in HTTP handler - %s", error)
            return HttpError(500, "INTERNAL_ERROR").response
        finally:
            request.release_body()

    async def _send(self, request: Request, response: Response, send: Send) -> None:
        headers = response_headers(response)
        close = response.close or request.awaits_continue
        if close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if close and self._linger is not None:
            # The server closes the connection after the last piece, so discard the rest of the request before that.
            await _send_in_pieces(response.body, send)
            await self._linger(request.discard_rest)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif len(response.body) <= _PIECE:
            await send({"type": "http.response.body", "body": response.body, "more_body": False})
        else:
            await _send_in_pieces(response.body, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, request: Request, stream: Stream, send: Send) -> None:
        sent = 0
        attend = self._attend or _unattended
        try:
            async with attend(request, lambda: sent):
                await send({"type": "http.response.start", "status": stream.status, "headers": list(stream.headers)})
                while (piece := await stream.next_piece()) is not None and not request.is_gone:
                    await _send_in_pieces(piece, send)
                    sent += 1
                if not request.is_gone:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:  # the peer sees that the response is incomplete
            self._log.exception("streamed answer aborted - %s", error)
            request.abort()
            await request.wait_until_lost()
        finally:
            await stream.close()


async def _send_in_pieces(body: bytes, send: Send) -> None:
    """Send a large body in pieces. Given the whole body, the server would copy everything that it can't send yet."""
    for start in range(0, max(1, len(body)), _PIECE):
        if start:
            await asyncio.sleep(0)  # give way: with a fast peer, `send` never waits
        await send({"type": "http.response.body", "body": body[start : start + _PIECE], "more_body": True})


@asynccontextmanager
async def _unattended(request: Request, sent: Callable[[], int]) -> AsyncIterator[None]:
    yield


def _redirect(request: Request, path: str) -> Response:
    # NSQ's releases redirect methods other than GET with 307; only newer versions of their router send 308.
    location = quote(path, safe="/:@!$&'()*+,;=~")
    if request.query_string:
        location += "?" + request.query_string.decode("latin-1")
    header = (b"location", location.encode("latin-1"))
    if request.method != "GET":
        return Response(307, headers=(header,))
    link = escape(location).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    body = f'<a href="{link}">Moved Permanently</a>.\n\n'
    return Response(301, body.encode("latin-1"), (HTML, header))


def handler_slices() -> Slices:
    """Create the time slices for a handler's work. Between slices, the asyncio loop runs other handlers."""
    return Slices(partial(asyncio.sleep, 0))


def truth(arguments: Mapping[str, str], name: str) -> bool:
    """Return a boolean argument: False for `false` and `0`, True for anything else or no argument."""
    return arguments.get(name) not in ("false", "0")
