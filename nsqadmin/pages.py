"""The pages: complete HTML from the snapshot, for browsers without a script, too."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

from nsqadmin.answers import identity_of
from nsqadmin.app import Route

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.services import Services


def routes(services: Services) -> list[Route]:
    pages = _Pages(services)
    return [Route("GET", "/", pages.topics), Route("GET", "/topics", pages.topics)]


class _Pages:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def topics(self, request: Request) -> Response:
        identity = identity_of(request)
        prefix = self._services.options.prefix
        names = [topic.name for topic in self._services.view.snapshot.topics if identity.sees(topic.name)]
        items = "".join(f'<li><a href="{prefix}/topics/{quote(name)}">{escape(name)}</a></li>' for name in names)
        return HTMLResponse(
            f'<!doctype html><html lang="en"><title>nsqadmin</title><h1>Topics</h1><ul>{items}</ul></html>'
        )
