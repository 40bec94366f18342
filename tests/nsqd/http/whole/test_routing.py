"""What all endpoints have in common: routes, redirects, refusals, crashes, arguments, the log line."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from nsqcommon.http_api import HttpApi, HttpDate, Request, Response, Route, json, parse_query, text
from tests.support.asgi import Answer, ask

NOT_FOUND = b'{"message":"NOT_FOUND"}'
V1_JSON = {"content-type": "application/json; charset=utf-8", "x-nsq-content-type": "nsq; version=1.0"}


async def show_query(request: Request) -> Response:
    return json(request.query())


async def show_argument(request: Request) -> Response:
    return text(request.words["option"])


async def crash(request: Request) -> Response:
    raise RuntimeError("no such luck")


API = HttpApi(
    [
        Route("GET", "/ping", show_query),
        Route("POST", "/topic/create", show_query),
        Route("GET", "/config/{option}", show_argument),
        Route("PUT", "/config/{option}", show_argument),
        Route("GET", "/quiet", show_query, logged=False),
        Route("GET", "/dir/", show_query),
        Route("POST", "/crash", crash),
    ],
    log=logging.getLogger("nsqd.test"),
)


def call(method: str, target: str, **headers: str) -> Answer:
    return ask(API, method, target, headers=headers)


@pytest.mark.parametrize("path", ["/", "/pin", "/config", "/config/", "/config/a/b", "/ping/x", "/topic", "*"])
def test_unknown_path(path: str) -> None:
    answer = call("GET", path)
    assert (answer.status, answer.body) == (404, NOT_FOUND)
    assert answer.headers == {**V1_JSON, "content-length": str(len(NOT_FOUND))}


@pytest.mark.parametrize(("method", "path", "allow"), [
    ("POST", "/ping", "GET, OPTIONS"),
    ("HEAD", "/ping", "GET, OPTIONS"),
    ("GET", "/topic/create", "OPTIONS, POST"),
    ("DELETE", "/config/x", "GET, OPTIONS, PUT"),
])  # fmt: skip
def test_other_method(method: str, path: str, allow: str) -> None:
    answer = call(method, path)
    assert answer.status == 405
    assert answer.body == b'{"message":"METHOD_NOT_ALLOWED"}'
    assert answer.headers["allow"] == allow
    assert answer.headers.items() >= V1_JSON.items()


def test_options() -> None:
    answer = call("OPTIONS", "/topic/create")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers == {"allow": "OPTIONS, POST", "content-length": "0"}
    assert call("OPTIONS", "/nothing").status == 404


@pytest.mark.parametrize(("path", "location"), [
    ("/ping/", "/ping"),
    ("/PING", "/ping"),
    ("//ping", "/ping"),
    ("/x/../ping", "/ping"),
    ("/./Ping/?a=b&c", "/ping?a=b&c"),
    ("/dir", "/dir/"),
    ("/Config/Log_Level", "/config/Log_Level"),
    ("/config/x/", "/config/x"),
])  # fmt: skip
def test_nearly_right_path_is_redirected(path: str, location: str) -> None:
    answer = call("GET", path)
    assert answer.status == 301
    assert answer.headers["location"] == location
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    escaped = location.replace("&", "&amp;")
    assert answer.body.decode() == f'<a href="{escaped}">Moved Permanently</a>.\n\n'
    assert "x-nsq-content-type" not in answer.headers


def test_redirect_of_other_methods_has_no_body() -> None:
    answer = call("POST", "/topic/create/?topic=t")
    assert (answer.status, answer.body) == (307, b"")
    assert answer.headers == {"location": "/topic/create?topic=t", "content-length": "0"}


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "/ping/", 404), ("HEAD", "/ping/", 404), ("GET", "/topic/create/", 404), ("OPTIONS", "/PING", 404),
])  # fmt: skip
def test_no_redirect_to_a_route_of_another_method(method: str, path: str, status: int) -> None:
    assert call(method, path).status == status


def test_crash_is_an_internal_error_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answer = call("POST", "/crash")
    assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert answer.headers.items() >= V1_JSON.items()
    failures = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in failures] == ["panic in HTTP handler - no such luck"]


@pytest.mark.parametrize(("query", "arguments"), [
    (b"", {}),
    (b"a=1&b=2&a=3", {"a": "1", "b": "2"}),
    (b"a", {"a": ""}),
    (b"&&a=&=b&", {"a": "", "": "b"}),
    (b"a=b=c", {"a": "b=c"}),
    (b"a+b=c+d%20%2B%26", {"a b": "c d +&"}),
    (b"a=%C3%A9", {"a": "é"}),
    (b"a=%ff", {"a": "\udcff"}),
])  # fmt: skip
def test_query(query: bytes, arguments: dict[str, str]) -> None:
    assert parse_query(query) == arguments


@pytest.mark.parametrize("query", ["a=%", "a=%2", "a=%zz", "%g0", "a;b", "a=1&;", "a=%3B;"])
def test_one_fault_spoils_the_whole_query(query: str) -> None:
    answer = call("GET", f"/ping?{query}")
    assert (answer.status, answer.body) == (400, b'{"message":"INVALID_REQUEST"}')


def test_empty_text_has_no_type() -> None:
    answer = ask(HttpApi([Route("GET", "/", _empty)], log=logging.getLogger("x")), "GET", "/")
    assert answer.headers == {"x-nsq-content-type": "nsq; version=1.0", "content-length": "0"}


async def _empty(request: Request) -> Response:
    return text("")


def test_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        call("GET", "/ping?a=%20")
        call("GET", "/nothing")
        for quiet in ("/quiet", "/ping/"):
            call("GET", quiet)
        call("OPTIONS", "/ping")
    first, second = caplog.messages
    assert first.startswith("200 GET /ping?a=%20 (10.0.0.1:5555) ")
    assert first.endswith("s")
    assert second.startswith("404 GET /nothing (10.0.0.1:5555) ")


def test_body_that_is_still_withheld_ends_the_connection() -> None:
    # The client may send the body or not, so what follows could be a body or a request.
    answer = call("POST", "/topic/create", Expect="100-continue")
    assert answer.headers["connection"] == "close"


def test_date_is_formatted_once_a_second() -> None:
    now = 1_700_000_000.25
    date = HttpDate(lambda: now)
    first = date()
    now += 0.5
    assert date() is first
    now += 0.5
    assert (first, date()) == (b"Tue, 14 Nov 2023 22:13:20 GMT", b"Tue, 14 Nov 2023 22:13:21 GMT")


def test_a_long_answer_is_sent_in_pieces_between_which_others_have_their_turn() -> None:
    body = b"0123456789abcdef" * 100_000

    async def show(request: Request) -> Response:
        return Response(body=body)

    sent: list[bytes] = []
    turns: list[int] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> dict[str, Any]:
        raise AssertionError("there is no body to read")

    api = HttpApi([Route("GET", "/long", show)], log=logging.getLogger("nsqd.test"))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/long",
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
    }
    answering = api(scope, receive, send)
    with suppress(StopIteration):
        while answering.send(None) is None:
            turns.append(len(b"".join(sent)))
    assert b"".join(sent) == body
    steps = [after - before for before, after in pairwise([0, *turns, len(body)])]
    assert max(steps) <= 256 << 10
