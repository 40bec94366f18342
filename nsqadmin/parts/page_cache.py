"""Caches rendered pages: once per sample, and users with the same view get the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import HTMLResponse, Response

from nsqadmin.http.responses import identity_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from starlette.requests import Request

    from nsqadmin.http.app import Handler
    from nsqadmin.services import Services

_READING: Final = ("messages", "inflight", "buried", "deferred", "groups")  # tabs that query nodes themselves
MOST_BYTES: Final = 16 << 20  # of all cached pages together; pages that don't fit are rendered each time


class PageCache:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._index = -1
        self._pages: dict[Hashable, bytes] = {}
        self._bytes = 0

    def __call__(self, make: Handler) -> Handler:
        """Wrap the handler of a page that only depends on the snapshot, the user, the options and the URL."""

        async def page(request: Request) -> Response:
            if not self._may_be_kept(request):
                return await make(request)
            self._begin(self._services.view.snapshot.index)
            version = self._services.incidents.version
            key = request.url.path, request.url.query, identity_of(request), self._services.options, version
            if (kept := self._pages.get(key)) is not None:
                return HTMLResponse(kept)
            index = self._index
            response = await make(request)
            if response.status_code == 200 and index == self._services.view.snapshot.index:
                self._keep(key, bytes(response.body))
            return response

        return page

    def _may_be_kept(self, request: Request) -> bool:
        """Return True if the page may be cached: pages with fresh numbers or with messages may not."""
        return request.query_params.get("fresh") != "1" and request.query_params.get("tab") not in _READING

    def _begin(self, index: int) -> None:
        """Empty the cache if there is a new snapshot."""
        if index != self._index:
            self._index, self._pages, self._bytes = index, {}, 0

    def _keep(self, key: Hashable, body: bytes) -> None:
        if self._bytes + len(body) <= MOST_BYTES:
            self._bytes += len(body)
            self._pages[key] = body
