from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from common.http_api import Route
from nsqd.http import Guard
from nsqd.http.debug import debug_routes
from nsqd.http.guard import FORBIDDEN, ROLES, UNKNOWN, role_of, token_of
from nsqd.rights import Role, parse_rights
from tests.unit.http.conftest import Nsqd
from tests.unit.nsqd.test_rights import FILE


async def handler(request: object) -> None: ...


@pytest.mark.parametrize(
    ("header", "token"),
    [(b"Bearer abc", b"abc"), (b"bearer  abc ", b"abc"), (b"", b""), (b"Basic YTpi", b"Basic YTpi"), (b"Bearer", b"")],
)
def test_the_token_in_a_header(header: bytes, token: bytes) -> None:
    assert token_of(header) == token


def test_what_looks_inside_is_for_operators_and_what_nobody_knows_for_admins() -> None:
    async def run_trio(function: Callable[[], Awaitable[None]]) -> None: ...

    assert {role_of(route) for route in debug_routes(run_trio)} == {Role.OPERATE}
    assert role_of(Route("POST", "/new", handler)) is Role.ADMIN  # type: ignore[arg-type]


def test_every_route_has_its_role(nsqd: Nsqd) -> None:
    assert nsqd.app.routes
    for route in nsqd.app.routes:
        if not route.path.startswith("/debug/"):
            assert route.path in ROLES or f"{route.method} {route.path}" in ROLES, route


def test_decisions_are_remembered_until_the_rights_change() -> None:
    now = [parse_rights(FILE)]
    guard = Guard(lambda: now[0], names_count=False)
    question = (b"topic=orders", b"Bearer secret", "")
    assert guard.check_publish(*question) is None
    assert guard.check_publish(*question) is None
    assert guard.check_publish(b"topic=other", b"Bearer secret", "") is FORBIDDEN
    assert guard.check_publish(b"topic=orders", b"Bearer x", "") is UNKNOWN
    now[0] = parse_rights("")
    assert guard.check_publish(*question) is UNKNOWN


@pytest.mark.parametrize("query", [b"", b"topic=%zz", b"topic=a;b", b"channel=orders"])
def test_who_is_limited_to_topics_has_to_name_one(query: bytes) -> None:
    guard = Guard(lambda: parse_rights(FILE), names_count=False)
    assert guard.check_publish(query, b"Bearer secret", "") is FORBIDDEN
    assert guard.check_publish(query, b"Bearer root", "") is None


def test_the_first_topic_counts_as_it_does_for_publishing() -> None:
    guard = Guard(lambda: parse_rights(FILE), names_count=False)
    assert guard.check_publish(b"topic=other&topic=orders", b"Bearer secret", "") is FORBIDDEN


@pytest.mark.parametrize(("names_count", "answer"), [(True, None), (False, UNKNOWN)])
def test_a_name_that_nobody_has_vouched_for_is_none(names_count: bool, answer: object) -> None:
    guard = Guard(lambda: parse_rights(FILE), names_count=names_count)
    assert guard.check_publish(b"topic=orders", b"", "billing.example") is answer
