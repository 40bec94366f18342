"""Graphite: the rate of a metric for programs, and a proxy for graphite's pictures."""

from __future__ import annotations

import logging
from base64 import b64encode
from json import loads
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, unquote, urlsplit

import httpx
import trio
from starlette.responses import Response

from nsqadmin.http.app import Route
from nsqadmin.http.responses import json_answer, remote_of
from nsqcommon.http_api import HttpError
from nsqcommon.options import seconds
from nsqcommon.passwords import mask_passwords
from nsqcommon.web import run_trio

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.options import Options

log = logging.getLogger(__name__)

# Headers of one connection, or headers that identify our user.
_NOT_HANDED_ON: Final = frozenset(
    (
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "proxy-authorization",
        "content-length",
        "authorization",
        "cookie",
    )
)
_HANDED_BACK: Final = frozenset(("content-type", "cache-control", "etag", "expires", "last-modified"))


def routes(options: Options) -> list[Route]:
    graphite = _Graphite(options)
    always = [Route("GET", "/api/graphite", graphite.rate)]
    return [*always, Route("GET", "/render", graphite.render, logged=False)] if options.proxy_graphite else always


class _Graphite:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._timeout = seconds(options.http_client_request_timeout)

    async def rate(self, request: Request) -> Response:
        if request.query_params.get("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = request.query_params.get("target")
        if target is None:
            raise HttpError(400, "INVALID_ARG_TARGET")
        interval = seconds(self._options.statsd_interval)
        query = f"format=json&from=-{2 * interval:.0f}sec&target={quote_plus(target)}&until=-{interval:.0f}sec"
        url = f"{self._options.graphite_url.rstrip('/')}/render?{query}"
        log.info("GRAPHITE: %s", url)
        try:
            answer = await run_trio(self._get, url, {})
            answer.raise_for_status()
            value = float(loads(answer.content)[0]["datapoints"][0][0])
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            trio.TooSlowError,
            OSError,
            ValueError,
            TypeError,
            LookupError,
        ) as error:
            log.error("failed to query graphite - %s", error)
            raise HttpError(500, "INTERNAL_ERROR") from error
        return json_answer({"rate": "N/A" if value < 0 else f"{value / interval:.2f}"})

    async def render(self, request: Request) -> Response:
        """Proxy an image. As in NSQ, only scheme, host and credentials of --graphite-url count.

        The base path of nsqadmin's own URLs isn't passed on.
        """
        parts = urlsplit(self._options.graphite_url)
        headers = {name: value for name, value in request.headers.items() if name not in _NOT_HANDED_ON}
        headers["x-forwarded-for"] = remote_of(request).rpartition(":")[0]
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            headers["authorization"] = f"Basic {b64encode(pair).decode()}"
        url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/render"
        if request.url.query:
            url += f"?{request.url.query}"
        try:
            answer = await run_trio(self._get, url, headers)
        except (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError, OSError, ValueError) as error:
            log.error("graphite does not answer - %s", error)
            raise HttpError(502, f"UPSTREAM_ERROR: {mask_passwords(str(error))}") from error
        kept = {name: value for name, value in answer.headers.items() if name in _HANDED_BACK}
        return Response(answer.content, answer.status_code, kept)

    async def _get(self, url: str, headers: dict[str, str]) -> httpx.Response:
        with trio.fail_after(self._timeout):
            async with httpx.AsyncClient(trust_env=False, timeout=self._timeout) as client:
                return await client.get(url, headers=headers)
