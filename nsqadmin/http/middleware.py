"""The ASGI middleware around all routes; `app.py` has their order.

All are plain ASGI: Starlette's `BaseHTTPMiddleware` would put a task and a queue between a stream and its peer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.requests import Request
from starlette.routing import BaseRoute, Match

from nsqadmin.http.responses import refusal, remote_of, text_answer
from nsqcommon.http_api import ClientGone, HttpError
from nsqcommon.options import format_duration
from nsqcommon.origin import OwnHosts, is_from_browser

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

_LEAST_TO_COMPRESS: Final = 512  # bytes
_WORTH_A_THREAD: Final = 1 << 20  # bytes; in measurements, a thread adds half of the processor time to the topics page
_QUICK: Final = 4  # gzip's level; the last percent isn't worth the time on a page of 10,000 channels
_SLASH: Final = "\udc2f"  # half a character, which can't be in a decoded path
# A search for a burial reason may quote a message, so we don't log it, only a short name such as `#1a2b`.
_a_reason: Final = re.compile(rb"\breason=(?!%23[0-9a-f]{12}(?:&|$))[^&]+")
_CALLBACK: Final = b"/login/callback"  # its code and state are for this login only, but still secrets


class SecurityHeaders:
    def __init__(self, app: ASGIApp, image_source: str) -> None:
        """`image_source` is another origin from which pages may load images: graphite's."""
        images = f"'self' data: {image_source}".rstrip()
        self._app = app
        self._headers = {
            "content-security-policy": (
                f"default-src 'self'; img-src {images}; object-src 'none'; base-uri 'none'; form-action 'self'; "
                "frame-ancestors 'none'"
            ),
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
            "referrer-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                kind = headers.get("content-type", "")
                # Files, too: a shared cache in front of us doesn't know who may see the messages in them.
                if kind.startswith(("text/html", "application/json")) or "content-disposition" in headers:
                    headers.setdefault("cache-control", "no-store")
                # Here, because errors pass by the middleware of a route.
                for cookie in scope.get("state", {}).get("cookies", ()):
                    headers.append("set-cookie", cookie)
                    if "no-store" not in (kept := headers.get("cache-control", "")):
                        # A shared cache would hand the session to others, with an image of Graphite's, for example.
                        headers["cache-control"] = "no-store" + ", no-transform" * ("no-transform" in kept)
            await send(message)

        await self._app(scope, receive, send_secured)


class LogLine:
    """Logs each request, unless its `request.state.logged` is False. Answers 500 when a handler fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = perf_counter_ns(), 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except ClientGone:
            return
        except Exception as error:  # our bug; it fails only this request, with NSQ's line in the log
            if status:
                raise  # the answer has started, so the server ends the connection
            log.exception("panic in HTTP handler - %s", error)
            await refusal(HttpError(500, "INTERNAL_ERROR"))(scope, receive, send_noted)
        request = Request(scope)
        if getattr(request.state, "logged", True):
            duration = format_duration(perf_counter_ns() - started)
            log.info("%d %s %s (%s) %s", status, request.method, _uri(scope), remote_of(request), duration)


def _uri(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query = b"***" if raw.endswith(_CALLBACK) else _a_reason.sub(b"reason=***", scope["query_string"])
    return (raw + b"?" + query if query else raw).decode("latin-1")


class Compression(GZipMiddleware):
    """Starlette's, for clients that send the bare word `gzip`, as in NSQ. Starlette also compresses for `gzip;q=0`."""

    def __init__(self, app: ASGIApp) -> None:
        # We send a file of messages while reading nodes. Compression would even delay its headers until the first line.
        streams = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/x-ndjson")
        super().__init__(app, _LEAST_TO_COMPRESS, _QUICK, _WORTH_A_THREAD, exclude_content_types=streams)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        accepted = Headers(scope=scope).get("accept-encoding", "").split(",")
        if "gzip" in (encoding.strip() for encoding in accepted):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class EscapedSlashes:
    """Replaces an escaped slash by `_SLASH`, because it's part of a name, not a separator."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            pieces = raw.decode("latin-1").split("/")
            scope["path"] = "/".join(unquote(piece).replace("/", _SLASH) for piece in pieces)
        await self._app(scope, receive, send)


def decoded(path: str) -> str:
    """Return the path with all its slashes, after `EscapedSlashes`."""
    return path.replace(_SLASH, "/")


class HostCheck:
    """Refuses requests that call us by a foreign host name. common/nsqcommon/origin.py explains the attack."""

    def __init__(self, app: ASGIApp, hosts: OwnHosts, any_host: Sequence[BaseRoute]) -> None:
        """Programs may call the routes `any_host` by any name."""
        self._app = app
        self._hosts = hosts
        self._any_host = any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        app = self._app
        if reason := self._hosts.why_not(headers.get("host", ""), "--allowed-host"):
            is_program = not is_from_browser(
                headers.get("sec-fetch-site", ""), headers.get("origin", ""), headers.get("user-agent", "")
            )
            if not (is_program and any(route.matches(scope)[0] is Match.FULL for route in self._any_host)):
                app = text_answer(reason + "\n", status=421, v1=False)
        await app(scope, receive, send)
