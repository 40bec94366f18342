"""The ASGI application: routes in NSQ's manner under the base path, identification, security headers, and the log line.

    request ──► route ──► host ──► origin (if it changes something) ──► identity ──► handler ──► headers, gzip ──► answer

It uses Starlette's request and response. The rest of Starlette does not fit:

- Its router knows neither NSQ's redirects (common/nsqcommon/routes.py, shared with the daemons) nor an escaped slash in a name.
- Its compression looks for `gzip` anywhere in the header, so `gzip;q=0` is compressed as well; NSQ compresses for the
  bare word only.
- Its static files are looked up on the disk for each request; ours are few, part of the package, and named by their
  content.
"""

from __future__ import annotations

import gzip
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from time import perf_counter_ns
from typing import Final, Protocol
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from nsqadmin.access import Identity, Right
from nsqadmin.http.responses import refusal, remote_of, text_answer
from nsqcommon.http_api import ClientGone, HttpError, Receive, Scope, Send
from nsqcommon.options import format_duration
from nsqcommon.origin import OwnHosts, is_from_browser, why_foreign
from nsqcommon.routes import RouteTable

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

_LEAST_TO_COMPRESS: Final = 512  # bytes
_QUICK: Final = 4  # gzip's level; the last percent is not worth the time on a page of 10,000 channels
_SLASH: Final = "\udc2f"  # half a character, which no decoded path contains
_SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))
# A reason for burying that somebody looks for may quote a message, so it is not logged. `#1a2b` stands for one.
_a_reason: Final = re.compile(rb"\breason=(?!%23[0-9a-f]{12}(?:&|$))[^&]+")


@dataclass(frozen=True, slots=True)
class Route:
    """A handler for one method and path."""

    method: str
    path: str  # without the base path; `{name}` stands for one segment
    handler: Handler = field(repr=False)
    logged: bool = True
    public: bool = False  # also for users who have not logged in
    any_host: bool = False  # programs may call nsqadmin by any host name here, as they do with NSQ's; browsers may not


class LoginNeeded(Exception):
    """The user is unknown; the answer asks to log in."""


class Doorkeeper(Protocol):
    """Identifies users."""

    async def identify(self, request: Request) -> Identity:
        """Return the user, and put the name in HTTP Basic into `request.state.basic_user`. Raise LoginNeeded."""
        ...


class App:
    def __init__(
        self,
        routes: Iterable[Route],
        doorkeeper: Doorkeeper,
        hosts: OwnHosts,
        *,
        prefix: str = "",
        image_source: str = "",
        missing: Handler | None = None,
    ) -> None:
        """`image_source` is a further origin from which pages may load pictures: graphite's.

        `missing` is the page that browsers get for a path that does not exist.
        """
        self._prefix = prefix
        self._missing = missing
        self._table = RouteTable(routes, prefix)
        self._doorkeeper = doorkeeper
        self._hosts = hosts
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
            query = _a_reason.sub(b"reason=***", query)
            uri = (raw + b"?" + query if query else raw).decode("latin-1")
            log.info("%d %s %s (%s) %s", response.status_code, request.method, uri, remote_of(request), duration)

    async def _answer(self, request: Request) -> tuple[Response, bool]:
        method, path = request.method, request.scope["path"]
        found = self._table.find(method, _piecewise(request.scope))
        if reason := self._why_misdirected(request, any_host=found is not None and found[0].any_host):
            return text_answer(reason + "\n", status=421, v1=False), True
        if found is None and self._missing is not None and self._wants_page(request, method, path):
            found = Route(method, path, self._missing), {}
        if found is None:
            return self._answer_without_route(request, method, path)
        route, words = found
        request.scope["path_params"] = {name: word.replace(_SLASH, "/") for name, word in words.items()}
        if method not in _SAFE and (reason := _why_foreign(request)):
            return refusal(HttpError(403, "FORBIDDEN_ORIGIN", details={"reason": reason})), True
        request.state.identity, request.state.basic_user = Identity(), ""
        if not route.public:
            try:
                request.state.identity = await self._doorkeeper.identify(request)
            except LoginNeeded:
                return _login_needed(), True
            if reason := request.state.identity.why_not(Right.VIEW):  # a user without any role sees nothing at all
                return refusal(HttpError(403, "FORBIDDEN", details={"reason": reason})), True
        return await _handled(route.handler, request), route.logged

    def _why_misdirected(self, request: Request, *, any_host: bool) -> str:
        """Return why nobody may call us by the host name that the request gives; "" if it is one of ours.

        See common/nsqcommon/origin.py for what this prevents.
        """
        headers = request.headers
        if any_host and not is_from_browser(
            headers.get("sec-fetch-site", ""), headers.get("origin", ""), headers.get("user-agent", "")
        ):
            return ""
        return self._hosts.why_not(headers.get("host", ""), "--allowed-host")

    def _wants_page(self, request: Request, method: str, path: str) -> bool:
        """Return whether a person has gone to a path that does not exist; programs get JSON, as from NSQ."""
        return (
            method in ("GET", "HEAD")
            and "text/html" in request.headers.get("accept", "")
            and not path.startswith(f"{self._prefix}/api/")
            and self._table.redirect(method, path) is None
            and not self._table.allowed(path)
        )

    def _answer_without_route(self, request: Request, method: str, path: str) -> tuple[Response, bool]:
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


def _why_foreign(request: Request) -> str:
    headers = request.headers
    return why_foreign(headers.get("sec-fetch-site", ""), headers.get("origin", ""), headers.get("host", ""))


async def _handled(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except HttpError as error:
        return refusal(error)
    except ClientGone:
        raise
    except Exception as error:  # our bug, which fails this request only, with NSQ's line in the log
        log.exception("panic in HTTP handler - %s", error)
        return refusal(HttpError(500, "INTERNAL_ERROR"))


def _login_needed() -> Response:
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
    """Return whether to compress. NSQ does not know `q=`: only the bare word counts."""
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
    """Return the decoded path, with `_SLASH` in place of an escaped slash, which belongs to a name."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return str(scope["path"])
    return "/".join(unquote(piece).replace("/", _SLASH) for piece in raw.decode("latin-1").split("/"))
