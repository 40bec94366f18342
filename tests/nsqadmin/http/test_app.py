"""Routing, refusals and answers as in NSQ, from an application with a few routes."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from nsqadmin.access import READERS, Identity
from nsqadmin.http.app import LoginNeeded, Route, application
from nsqadmin.http.event_stream import EventStream
from nsqcommon.http_api import ClientGone, HttpError
from nsqcommon.origin import OwnHosts

LONG: Final = "x" * 1000


class Answer:
    """What an ASGI application has sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])


class Doorkeeper:
    async def identify(self, request: Request) -> Identity:
        match request.headers.get("authorization"):
            case None:
                return Identity(user="ana", roles=(READERS,))
            case "stranger":
                raise LoginNeeded
            case _:
                return Identity(user="no roles")


async def _names(request: Request) -> Response:
    return Response("|".join(request.path_params.values()))


async def _exact(request: Request) -> Response:
    return Response(f"exact{LONG}")


async def _missing(request: Request) -> Response:
    return HTMLResponse("no such page", 404)


async def _fails(request: Request) -> Response:
    raise ZeroDivisionError("a bug")


async def _refuses(request: Request) -> Response:
    raise HttpError(409, "NOT_NOW", details={"reason": "busy"})


async def _file(request: Request) -> Response:
    return Response("x", headers={"content-disposition": "attachment"}, media_type="application/octet-stream")


async def _image(request: Request) -> Response:
    request.state.cookies = ["session=1"]  # as the login does it for a session that was refreshed
    return Response(b"x", headers={"cache-control": "public, max-age=60"}, media_type="image/png")


async def _gone(request: Request) -> Response:
    raise ClientGone


ROUTES: Final = (
    Route("GET", "/", _exact),
    Route("GET", "/topics/{topic}", _names),
    Route("GET", "/topics/{topic}/{channel}", _names),
    Route("GET", "/topics/all", _exact),
    Route("POST", "/topics/{topic}", _names),
    Route("GET", "/ping", _exact, public=True, any_host=True),
    Route("GET", "/quiet", _exact, logged=False),
    Route("GET", "/fails", _fails),
    Route("GET", "/refuses", _refuses),
    Route("GET", "/gone", _gone),
    Route("GET", "/image", _image),
    Route("GET", "/file", _file),
)


def ask(path: str, method: str = "GET", *, prefix: str = "", raw: str = "", **headers: str) -> Answer:
    app = application(ROUTES, Doorkeeper(), OwnHosts([], ()), prefix=prefix, missing=_missing)
    answer = Answer()
    asyncio.run(_asked(app, answer, path, headers, method, raw))
    return answer


async def _asked(
    app: ASGIApp, answer: Answer, path: str, headers: dict[str, str], method: str = "GET", raw: str = ""
) -> None:
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": (raw or path).encode(),
        "query_string": b"",
        "headers": [
            (name.replace("_", "-").encode(), value.encode())
            for name, value in ({"host": "localhost"} | headers).items()
        ],
    }

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    await app(scope, receive, answer.send)


# Routes


def test_exact_paths_win() -> None:
    assert ask("/topics/all").body.startswith(b"exact")
    assert ask("/topics/some").body == b"some"


def test_an_escaped_slash_belongs_to_a_name() -> None:
    assert ask("/topics/a/b", raw="/topics/a%2fb").body == b"a/b"
    assert ask("/topics/a/b/c", raw="/topics/a%2Fb/c").body == b"a/b|c"
    assert ask("/topics/a%2Fb", raw="/topics/a%252Fb").body == b"a%2Fb"


def test_a_path_ends_where_it_ends() -> None:
    assert ask("/ping\n", raw="/ping%0A").status == 404
    assert ask("/ping\n", raw="/ping%0A", host="evil.example").status == 421


@pytest.mark.parametrize("path", ["/ping/", "/PING", "//ping", "/x/../ping"])
def test_what_is_nearly_a_path_is_redirected(path: str) -> None:
    moved = ask(path)
    assert (moved.status, moved.headers["location"]) == (301, "/ping")
    assert ask("/topics/t/", "POST").status == 307


def test_the_root_is_the_base_path_without_a_slash() -> None:
    assert ask("/nsq", prefix="/nsq").status == 200
    assert ask("/nsq/", prefix="/nsq").headers["location"] == "/nsq"
    assert ask("/topics/all", prefix="/nsq").status == 404


def test_other_methods_are_refused_with_those_that_there_are() -> None:
    for method in ("HEAD", "PUT"):
        refused = ask("/topics/t", method)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, OPTIONS, POST")
    allowed = ask("/topics/t", "OPTIONS")
    assert (allowed.status, allowed.headers["allow"], allowed.body) == (200, "GET, OPTIONS, POST", b"")


def test_people_get_a_page_where_programs_get_json() -> None:
    assert ask("/nosuch").body == b'{"message":"NOT_FOUND"}'
    assert ask("/nosuch\n", accept="text/html").body == b"no such page"
    assert ask("/nosuch", accept="text/html", authorization="stranger").status == 401
    for raw in ("/api/nosuch", "/api%2Fnosuch"):
        assert ask("/api/nosuch", raw=raw, accept="text/html").body == b'{"message":"NOT_FOUND"}'


# Who may ask


def test_strangers_are_asked_to_log_in_except_on_public_routes() -> None:
    refused = ask("/topics/t", authorization="stranger")
    assert (refused.status, refused.headers["www-authenticate"][:5]) == (401, "Basic")
    assert ask("/topics/t", authorization="nobody").status == 403
    assert ask("/ping", authorization="stranger").status == 200


def test_foreign_names_and_pages_are_refused() -> None:
    assert ask("/topics/t", host="evil.example").status == 421
    assert ask("/nosuch", host="evil.example").status == 421
    assert ask("/ping", host="evil.example").status == 200
    assert ask("/ping", host="evil.example", user_agent="Mozilla/5.0").status == 421
    assert ask("/topics/t", "POST", origin="http://evil.example").status == 403
    assert ask("/topics/t", origin="http://evil.example").status == 200


# Answers


def test_errors_are_answers_with_all_headers() -> None:
    refused = ask("/refuses")
    assert (refused.status, refused.body) == (409, b'{"message":"NOT_NOW","reason":"busy"}')
    for path in ("/refuses", "/fails", "/nosuch"):
        headers = ask(path).headers
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"


def test_no_cache_keeps_files() -> None:
    assert ask("/file").headers["cache-control"] == "no-store"


def test_no_cache_keeps_a_session_with_an_image() -> None:
    headers = ask("/image").headers
    assert (headers["set-cookie"], headers["cache-control"]) == ("session=1", "no-store")


def test_a_bug_fails_one_request(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        failed = ask("/fails")
    assert (failed.status, failed.body) == (500, b'{"message":"INTERNAL_ERROR"}')
    words = [record.getMessage() for record in caplog.records]
    assert words[0] == "panic in HTTP handler - a bug"
    assert [it for it in words[1:] if it.startswith("500 GET /fails (@)")] == words[1:]


def test_who_has_gone_gets_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert ask("/gone").messages == []
    assert not caplog.records


@pytest.mark.parametrize(
    ("path", "method", "headers", "lines"),
    [
        ("/topics/t", "GET", {}, 1),
        ("/topics/t/", "GET", {}, 0),
        ("/topics/t", "OPTIONS", {}, 0),
        ("/quiet", "GET", {}, 0),
        ("/quiet", "GET", {"authorization": "stranger"}, 1),
        ("/quiet", "GET", {"host": "evil.example"}, 1),
        ("/nosuch", "GET", {}, 1),
    ],
)
def test_what_is_logged(
    caplog: pytest.LogCaptureFixture, path: str, method: str, headers: dict[str, str], lines: int
) -> None:
    with caplog.at_level(logging.INFO):
        ask(path, method, **headers)
    assert len(caplog.records) == lines


@pytest.mark.parametrize(
    ("taken", "is_packed"),
    [
        ("gzip", True),
        ("deflate, gzip", True),
        ("gzip;q=0", False),
        ("gzip;q=0.5", False),
        ("x-gzip", False),
        ("", False),
    ],
)
def test_answers_are_compressed_for_the_bare_word(taken: str, is_packed: bool) -> None:
    answer = ask("/", accept_encoding=taken)
    body = gzip.decompress(answer.body) if is_packed else answer.body
    assert body == b"exact" + LONG.encode()
    assert answer.headers.get("content-encoding") == ("gzip" if is_packed else None)
    assert int(answer.headers["content-length"]) == len(answer.body)


@pytest.mark.parametrize("media_type", ["text/event-stream; charset=utf-8", "application/x-ndjson"])
def test_streams_are_neither_compressed_nor_held_back(media_type: str) -> None:
    answer = Answer()
    sent: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            sent.append(len(answer.messages))
            yield LONG.encode()

    async def stream(request: Request) -> Response:
        return EventStream(pieces, close=lambda: None, headers={"content-type": media_type})

    app = application([Route("GET", "/", stream)], Doorkeeper(), OwnHosts([], ()), missing=_missing)
    asyncio.run(_asked(app, answer, "/", {"accept-encoding": "gzip"}))
    assert sent == [1, 2, 3]
    assert answer.body == LONG.encode() * 3
