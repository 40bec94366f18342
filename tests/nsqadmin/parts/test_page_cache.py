from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from nsqadmin.access import READERS, Identity
from nsqadmin.parts import page_cache
from nsqadmin.parts.page_cache import PageCache

ANA = Identity(user="ana", roles=(READERS,))
BEN = Identity(user="ben", roles=(READERS,))


class Site:
    def __init__(self, status: int = 200) -> None:
        self.made = 0
        self.status = status
        snapshot = SimpleNamespace(index=1)
        self.services = cast(
            "Any",
            SimpleNamespace(
                view=SimpleNamespace(snapshot=snapshot, after_actions=self._newest),
                options="options",
                incidents=SimpleNamespace(version=0),
            ),
        )
        self.page = PageCache(self.services)(self._make)

    async def _newest(self) -> Any:
        return self.services.view.snapshot

    async def _make(self, request: Request) -> Response:
        self.made += 1
        return HTMLResponse(f"{self.made}", self.status)

    def get(self, query: str = "", identity: Identity = ANA) -> bytes:
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": query.encode(), "headers": []}
        request = Request({**scope, "server": ("h", 80)})
        request.state.identity = identity
        return bytes(asyncio.run(self._got(request)).body)

    async def _got(self, request: Request) -> Response:
        return await self.page(request)


def test_a_page_is_made_once_for_each_sample() -> None:
    site = Site()
    assert [site.get(), site.get()] == [b"1", b"1"]
    site.services.view.snapshot.index = 2
    assert site.get() == b"2"


def test_a_page_is_made_again_when_somebody_has_marked_an_incident() -> None:
    site = Site()
    site.get()
    site.services.incidents.version += 1
    assert site.get() == b"2"


@pytest.mark.parametrize(("query", "identity"), [("sort=-depth", ANA), ("", BEN)])
def test_another_address_or_person_gets_another_page(query: str, identity: Identity) -> None:
    site = Site()
    site.get()
    assert site.get(query, identity) == b"2"


@pytest.mark.parametrize("query", ["fresh=1", "tab=messages"])
def test_what_is_asked_anew_and_messages_are_not_kept(query: str) -> None:
    site = Site()
    assert [site.get(query), site.get(query)] == [b"1", b"2"]


def test_what_is_not_there_may_be_there_soon() -> None:
    site = Site(status=404)
    assert [site.get(), site.get()] == [b"1", b"2"]


def test_pages_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "MOST_BYTES", 1)
    site = Site()
    assert [site.get("a=1"), site.get("a=2"), site.get("a=2")] == [b"1", b"2", b"3"]
