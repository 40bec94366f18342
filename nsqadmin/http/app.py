"""The ASGI application: routes in NSQ's manner under the base path, who asks, what browsers may do, the log line.

request ──► route ──► origin (of what changes something) ──► who is it ──► handler ──► headers, gzip ──► answer

Of Starlette this takes what a request and a response are. The rest of it does not fit:

- Its router knows neither NSQ's redirects (common/routes.py, shared with the daemons) nor a slash escaped within a name.
- Its compression looks for `gzip` anywhere in the header, so that `gzip;q=0` gets it; NSQ compresses for the bare word only.
- Its static files are looked up on the disk for each request; ours are few, part of the package, and named by their content.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from time import perf_counter_ns
from typing import Final, Protocol
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from common.http_api import ClientGone, HttpError, Receive, Scope, Send
from common.options import format_duration
from common.routes import RouteTable
from nsqadmin.access.origin import why_foreign
from nsqadmin.access.policy import Identity, Right
from nsqadmin.http.responses import refusal, remote_of, text_answer

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

_LEAST_TO_COMPRESS: Final = 512  # bytes
_QUICK: Final = 4  # gzip's level: a page of 10,000 channels must not wait for the last percent
_SLASH: Final = "\udc2f"  # half a character, which no path that was decoded has in it
_SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))


@dataclass(frozen=True, slots=True)
class Route:
    """`path` is without the base path; `{name}` in it takes one word. `public`: also for who has not logged in."""

    method: str
    path: str
    handler: Handler = field(repr=False)
    logged: bool = True
    public: bool = False


class LoginNeeded(Exception):
    """Nobody knows who asks; the answer is the request to say so."""


class Doorkeeper(Protocol):
    """Knows who somebody is."""

    async def identify(self, request: Request) -> Identity:
        """Raises LoginNeeded. Also says in `request.state.basic_user` what HTTP Basic calls him."""
        ...


class App:
    def __init__(
        self, routes: Iterable[Route], doorkeeper: Doorkeeper, *, prefix: str = "", image_source: str = ""
    ) -> None:
        """`image_source` is where pictures may come from, besides ourselves: graphite."""
        self._table = RouteTable(routes, prefix)
        self._doorkeeper = doorkeeper
        self._headers = _security_headers(image_source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"this application speaks HTTP only, not {scope['type']}")
        started = perf_counter_ns()
        request = Request(scope, receive)
        try:
            response, logged = await self._answer(request)
        except ClientGone:
            return
        self._complete(request, response)
        await response(scope, receive, send)
        if logged:
            duration = format_duration(perf_counter_ns() - started)
            raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
            query: bytes = scope["query_string"]
            uri = (raw + b"?" + query if query else raw).decode("latin-1")
            log.info("%d %s %s (%s) %s", response.status_code, request.method, uri, remote_of(request), duration)

    async def _answer(self, request: Request) -> tuple[Response, bool]:
        method, path = request.method, request.scope["path"]
        found = self._table.find(method, _piecewise(request.scope))
        if found is None:
            return self._where_else(request, method, path)
        route, words = found
        request.scope["path_params"] = {name: word.replace(_SLASH, "/") for name, word in words.items()}
        if method not in _SAFE and (reason := why_foreign(request.headers)):
            return refusal(HttpError(403, "FORBIDDEN_ORIGIN", details={"reason": reason})), True
        request.state.identity, request.state.basic_user = Identity(), ""
        if not route.public:
            try:
                request.state.identity = await self._doorkeeper.identify(request)
            except LoginNeeded:
                return _who_are_you(), True
            if reason := request.state.identity.why_not(Right.VIEW):  # who has no role at all sees nothing at all
                return refusal(HttpError(403, "FORBIDDEN", details={"reason": reason})), True
        return await _handled(route.handler, request), route.logged

    def _where_else(self, request: Request, method: str, path: str) -> tuple[Response, bool]:
        if (target := self._table.redirect(method, path)) is not None:
            return _redirect(request, target), False
        allowed = self._table.allowed(path)
        if not allowed:
            return refusal(HttpError(404, "NOT_FOUND")), True
        response = Response() if method == "OPTIONS" else refusal(HttpError(405, "METHOD_NOT_ALLOWED"))
        response.headers["allow"] = ", ".join(allowed)
        return response, method != "OPTIONS"

    def _complete(self, request: Request, response: Response) -> None:
        for name, value in self._headers:
            response.headers.setdefault(name, value)
        if response.headers.get("content-type", "").startswith(("text/html", "application/json")):
            response.headers.setdefault("cache-control", "no-store")
        if hasattr(response, "body") and _takes_gzip(request):
            _compress(response)


async def _handled(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except HttpError as error:
        return refusal(error)
    except ClientGone:
        raise
    except Exception as error:  # a bug of ours is an answer, and one line of the log, as in NSQ
        log.exception("panic in HTTP handler - %s", error)
        return refusal(HttpError(500, "INTERNAL_ERROR"))


def _who_are_you() -> Response:
    response = text_answer("log in", status=401, v1=False)
    response.headers["www-authenticate"] = 'Basic realm="nsqadmin", charset="UTF-8"'
    return response


# Headers


def _security_headers(image_source: str) -> tuple[tuple[str, str], ...]:
    images = f"'self' data: {image_source}".rstrip()
    policy = (
        f"default-src 'self'; img-src {images}; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )
    return (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    )


def _takes_gzip(request: Request) -> bool:
    """NSQ knows no `q=`: only the bare word counts."""
    return "gzip" in [token.strip() for token in request.headers.get("accept-encoding", "").split(",")]


def _compress(response: Response) -> None:
    body = bytes(response.body)
    if len(body) < _LEAST_TO_COMPRESS or "content-encoding" in response.headers:
        return
    response.body = gzip.compress(body, _QUICK, mtime=0)
    response.headers["content-encoding"] = "gzip"
    response.headers["vary"] = "Accept-Encoding"
    response.headers["content-length"] = str(len(response.body))


def _redirect(request: Request, path: str) -> Response:
    location = quote(path, safe="/:@!$&'()*+,;=~")
    if query := request.url.query:
        location += f"?{query}"
    if request.method != "GET":
        return Response(status_code=307, headers={"location": location})
    body = f'<a href="{escape(location)}">Moved Permanently</a>.\n\n'
    return Response(body, 301, {"location": location}, "text/html; charset=utf-8")


# Routes


def _piecewise(scope: Scope) -> str:
    """The path that is asked for, with `_SLASH` in the place of an escaped slash, which is part of a name."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return str(scope["path"])
    return "/".join(unquote(piece).replace("/", _SLASH) for piece in raw.decode("latin-1").split("/"))
