"""Which pages of other sites may use which paths, and that naming one lets in no other."""

from __future__ import annotations

import logging
from typing import Final

import pytest

from nsqcommon.cors import Cors, check_origins
from nsqcommon.http_api import HttpApi, Request, Response, Route, text
from nsqcommon.origin import OwnHosts
from nsqcommon.same_site import SameSite
from nsqcommon.startup import StartupError
from tests.support.asgi import Answer, ask

PAGE: Final = "https://page.example"
HERE: Final = {"host": "127.0.0.1:4151", "user-agent": "Mozilla/5.0"}


async def _ok(request: Request) -> Response:
    return text("OK")


def api_of(*origins: str) -> HttpApi[Route]:
    cors = Cors(origins, ("/sub",))
    same_site = SameSite(OwnHosts(()), strict=False, cors=cors, taking=frozenset(("/sub",)))
    routes = [Route(*it, _ok) for it in (("POST", "/sub"), ("GET", "/sub"), ("POST", "/delete"), ("GET", "/stats"))]
    return HttpApi(routes, log=logging.getLogger("nsqd.test"), guard=same_site.refusal, cors=cors)


def asked(api: HttpApi[Route], method: str, path: str, origin: str, site: str = "cross-site") -> Answer:
    headers = {**HERE, "origin": origin, **({"sec-fetch-site": site} if site else {})}
    return ask(api, method, path, headers=headers)


def test_a_named_site_may_use_the_paths_and_read_their_answers() -> None:
    api = api_of(PAGE)
    for method in ("POST", "GET"):
        answer = asked(api, method, "/sub", PAGE)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert answer.headers["vary"] == "origin"


def test_a_named_site_may_do_nothing_else() -> None:
    api = api_of(PAGE)
    assert asked(api, "POST", "/delete", PAGE).status == 403
    answer = asked(api, "GET", "/stats", PAGE)
    assert (answer.status, "access-control-allow-origin" in answer.headers) == (200, False)


@pytest.mark.parametrize("site", ["cross-site", "same-site", ""])
@pytest.mark.parametrize("origin", ["https://evil.example", "http://page.example", "https://page.example:8443", "null"])
def test_another_site_may_neither_take_nor_read(origin: str, site: str) -> None:
    for api in (api_of(PAGE), api_of()):
        for method in ("POST", "GET"):
            answer = asked(api, method, "/sub", origin, site)
            assert (answer.status, "access-control-allow-origin" in answer.headers) == (403, False)


def test_a_rebound_name_is_refused_to_a_named_site_too() -> None:
    answer = ask(api_of(PAGE), "GET", "/sub", headers={**HERE, "host": "evil.example", "origin": PAGE})
    assert answer.status == 421


def test_programs_and_our_own_pages_notice_nothing() -> None:
    assert ask(api_of(PAGE), "POST", "/sub").status == 200
    assert asked(api_of(PAGE), "GET", "/sub", "http://127.0.0.1:4151", "same-origin").status == 200


def test_a_preflight_is_answered_for_the_paths_alone() -> None:
    answer = asked(api_of(PAGE), "OPTIONS", "/sub", PAGE)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-methods"] == "GET, POST"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    for path, origin in (("/delete", PAGE), ("/sub", "https://evil.example")):
        refused = asked(api_of(PAGE), "OPTIONS", path, origin)
        assert not [name for name in refused.headers if name.startswith("access-control")]


def test_without_the_option_nothing_is_added() -> None:
    assert asked(api_of(), "OPTIONS", "/sub", PAGE).headers.keys() == {"allow", "content-length"}
    assert "vary" not in ask(api_of(), "POST", "/sub").headers


@pytest.mark.parametrize("text", ["*", "null", "page.example", "https://page.example/", "ftp://page.example", ""])
def test_what_is_no_site(text: str) -> None:
    with pytest.raises(StartupError, match="http-cors-origin"):
        check_origins("http-cors-origin", [text])


def test_what_is_a_site() -> None:
    check_origins("http-cors-origin", [PAGE, "http://127.0.0.1:8000", "http://[::1]:80", "https://Page.example:8443"])
