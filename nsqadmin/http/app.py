"""The web application: Starlette's, built from one table of routes, which also says who may call each of them.

    request ─► headers ─► log line ─► gzip ─► escaped slashes ─► host ─► router ─► gate ─► handler

The gate enforces the table: it refuses requests from pages of other sites, and users who haven't logged in. For a path
without a route we answer like NSQ (`_Unrouted`): Starlette redirects only a trailing slash, with its own answer, and
its 405 lists the methods of one route only. So our routes never use `Match.PARTIAL`, which also makes routing faster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from starlette import routing
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from nsqadmin.access import Identity, Right
from nsqadmin.http.middleware import (
    Compression,
    EscapedSlashes,
    HostCheck,
    LogLine,
    SecurityHeaders,
    decoded,
)
from nsqadmin.http.responses import refusal, text_answer
from nsqcommon.http_api import HttpError
from nsqcommon.origin import OwnHosts, is_from_browser, why_foreign
from nsqcommon.routes import RouteTable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]

CHALLENGE: Final = 'Basic realm="nsqadmin", charset="UTF-8"'
_SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))


@dataclass(frozen=True, slots=True)
class Route:
    """A handler for one method and path."""

    method: str
    path: str  # without the base path; `{name}` matches one segment
    handler: Handler = field(repr=False)
    logged: bool = True
    public: bool = False  # also for users who haven't logged in
    any_host: bool = False  # programs may use any host name for nsqadmin here, as with NSQ's; browsers may not


class LoginNeeded(Exception):
    """The user is unknown; the answer asks for a login."""

    def __init__(self, reason: str = "", *, page: str = "", takes_passwords: bool = True) -> None:
        """`page` is the page for people, if there is one. `takes_passwords`: programs can log in with HTTP Basic."""
        super().__init__(reason)
        self.reason = reason
        self.page = page
        self.takes_passwords = takes_passwords


class Doorkeeper(Protocol):
    """Identifies users."""

    async def identify(self, request: Request) -> Identity:
        """Return the user, and put the name in HTTP Basic into `request.state.basic_user`. Raise LoginNeeded."""
        ...


def application(
    routes: Iterable[Route],
    doorkeeper: Doorkeeper,
    hosts: OwnHosts,
    *,
    prefix: str = "",
    image_source: str = "",
    missing: Handler,
) -> Starlette:
    """Return the application. `missing` is the page that browsers get for an unknown path."""
    table = sorted(routes, key=lambda route: "{" in route.path)  # exact paths win
    routed = [_Routed(route, prefix, doorkeeper) for route in table]
    unrouted = _Unrouted(RouteTable(table, prefix))
    page = _MissingPage(prefix, missing, unrouted, doorkeeper)
    app = Starlette(
        routes=[*routed, page],
        middleware=[
            Middleware(SecurityHeaders, image_source),
            Middleware(LogLine),
            Middleware(Compression),
            Middleware(EscapedSlashes),
            Middleware(HostCheck, hosts, [it for route, it in zip(table, routed, strict=True) if route.any_host]),
        ],
        exception_handlers={
            HttpError: _refused,
            LoginNeeded: _login_needed,
            404: unrouted.answer,
        },
    )
    app.router.redirect_slashes = False
    return app


class _Routed(routing.Route):
    """Starlette's route, but for exactly one method and path: no implicit HEAD, and no newline after the path."""

    def __init__(self, route: Route, prefix: str, doorkeeper: Doorkeeper) -> None:
        path = prefix if prefix and route.path == "/" else prefix + route.path
        super().__init__(path, route.handler, middleware=[Middleware(_Gate, route, doorkeeper)])
        self.methods = {route.method}
        self._method = route.method

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["method"] == self._method and (found := self.path_regex.fullmatch(scope["path"])) is not None:
            return Match.FULL, {"path_params": {name: decoded(word) for name, word in found.groupdict().items()}}
        return Match.NONE, {}


class _Gate:
    """Runs before the handler of a route, and checks the conditions in its row of the table."""

    def __init__(self, app: ASGIApp, route: Route, doorkeeper: Doorkeeper) -> None:
        self._app = app
        self._route = route
        self._doorkeeper = doorkeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if self._route.method not in _SAFE and (reason := _why_foreign(request)):
            raise HttpError(403, "FORBIDDEN_ORIGIN", details={"reason": reason})
        if not self._route.public:
            request.state.identity = await self._doorkeeper.identify(request)
            if reason := request.state.identity.why_not(Right.VIEW):  # a user without any role can't see anything
                raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        request.state.logged = self._route.logged
        await self._app(scope, receive, send)


def _why_foreign(request: Request) -> str:
    headers = request.headers
    return why_foreign(headers.get("sec-fetch-site", ""), headers.get("origin", ""), headers.get("host", ""))


class _MissingPage(routing.Route):
    """The last route: a page for people at an unknown path. Programs get JSON, as from NSQ."""

    def __init__(self, prefix: str, page: Handler, unrouted: _Unrouted, doorkeeper: Doorkeeper) -> None:
        gate = Middleware(_Gate, Route("GET", "", page), doorkeeper)
        super().__init__("/", page, methods=None, middleware=[gate])
        self._apis = f"{prefix}/api/"
        self._unrouted = unrouted

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        request = Request(scope)
        wants_page = (
            request.method in ("GET", "HEAD")
            and "text/html" in request.headers.get("accept", "")
            and not decoded(scope["path"]).startswith(self._apis)
            and self._unrouted.is_missing(request)
        )
        return (Match.FULL if wants_page else Match.NONE), {}


class _Unrouted:
    """Answers requests without a route, in NSQ's manner (common/nsqcommon/routes.py)."""

    def __init__(self, table: RouteTable[Route]) -> None:
        self._table = table

    def is_missing(self, request: Request) -> bool:
        """Return True if there is nothing at this path, for any method."""
        path = decoded(request.scope["path"])
        return self._table.redirect(request.method, path) is None and not self._table.allowed(path)

    async def answer(self, request: Request, _error: Exception) -> Response:
        path = decoded(request.scope["path"])
        if (target := self._table.redirect(request.method, path)) is not None:
            request.state.logged = False
            return _redirect(request, target)
        allowed = self._table.allowed(path)
        if not allowed:
            return refusal(HttpError(404, "NOT_FOUND"))
        if request.method == "OPTIONS":
            request.state.logged = False
            return Response(headers={"allow": ", ".join(allowed)})
        response = refusal(HttpError(405, "METHOD_NOT_ALLOWED"))
        response.headers["allow"] = ", ".join(allowed)
        return response


def _redirect(request: Request, path: str) -> Response:
    location = quote(path, safe="/:@!$&'()*+,;=~")
    if query := request.url.query:
        location += f"?{query}"
    if request.method != "GET":
        return Response(status_code=307, headers={"location": location})
    body = f'<a href="{escape(location)}">Moved Permanently</a>.\n\n'
    return Response(body, 301, {"location": location}, "text/html; charset=utf-8")


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return refusal(error)


async def _login_needed(request: Request, error: Exception) -> Response:
    assert isinstance(error, LoginNeeded)
    if error.page and _is_navigation(request):
        return Response(status_code=303, headers={"location": error.page, "cache-control": "no-store"})
    reason = f"log in at {error.page}" if error.page else "log in"
    response = text_answer(f"{error.reason}: {reason}" if error.reason else reason, status=401, v1=False)
    # With a page for it, the browser must not open its own dialog, such as for a script whose session has ended.
    if error.takes_passwords and not (error.page and _is_from_browser(request)):
        response.headers["www-authenticate"] = CHALLENGE
    return response


def _is_navigation(request: Request) -> bool:
    """Return True if a person opens a page, and not a script, so that a redirect to a login makes sense."""
    mode = request.headers.get("sec-fetch-mode", "navigate")  # missing over plain HTTP
    return request.method == "GET" and mode == "navigate" and "text/html" in request.headers.get("accept", "")


def _is_from_browser(request: Request) -> bool:
    headers = request.headers
    return is_from_browser(headers.get("sec-fetch-site", ""), headers.get("origin", ""), headers.get("user-agent", ""))
