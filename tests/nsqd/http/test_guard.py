from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from nsqcommon.http_api import HttpApi, Request, Response, text
from nsqd.auth.rights import Rights, Role, parse_rights
from nsqd.http import Guard, QuickHttp, QuickRoutes
from nsqd.http.access import OPEN, PUBLISH, READ_NODE, READ_TOPIC, GuardedRoute, RequiredRole, Scope
from nsqd.http.guard import FORBIDDEN, UNKNOWN, token_of
from tests.nsqd.auth.test_rights import FILE, digest
from tests.nsqd.http.conftest import Nsqd
from tests.support.asgi import ask

PAGE = Path("docs/how-to/rights.md")

OWN = "orders"
# A query, and the topic by which a holder limited to OWN is judged; None: no topic.
QUERIES = {
    "": None,
    "topic=orders": OWN,
    "topic=%6frders": OWN,
    "channel=c&topic=orders": OWN,
    "topic=orders&topic=other": OWN,  # the first one is used, so the first one is judged
    "topic=other&topic=orders": "other",
    "topic=other": "other",
    "topic=ORDERS": "other",
    "topic=orders%23ephemeral": "other",
    "Topic=orders": None,
    "topic=": None,
    "topic=or%20ders": None,
    "topic=orders%00": None,
    "topic=orders%0a": None,
    "topic=orders;topic=other": None,
    "topic=orders%zz": None,
}
TOKENS = [
    *(f"{role}{limit}" for role in Role for limit in ("", "-limited")),
    "read+publish-limited",
    "stranger",
    "",
]


def entry(token: str) -> str:
    roles = token.removesuffix("-limited").split("+")
    limit = f'topics = ["{OWN}"]\n' if token.endswith("-limited") else ""
    return f'[[allow]]\nname = "{token}"\ntoken_sha256 = "{digest(token)}"\nroles = {roles}\n{limit}'


@cache
def everybody() -> Rights:
    return parse_rights("".join(entry(token) for token in TOKENS if token not in ("stranger", "")))


def _roles_in(access: RequiredRole) -> str:
    if access.and_role is not None:
        return f"`{access.role}` and `{access.and_role}`"
    return " or ".join(f"`{it}`" for it in (access.role, access.or_role) if it is not None) or "none"


def expected_status(access: RequiredRole, token: str, topic: str | None) -> int:
    if access.role is None:
        return 200
    if token in ("stranger", ""):
        return 401
    roles = token.removesuffix("-limited").split("+")
    if {access.role, access.or_role, "admin"}.isdisjoint(roles):
        return 403
    if access.and_role is not None and {access.and_role, "admin"}.isdisjoint(roles):
        return 403
    if token.endswith("-limited") and (access.scope is Scope.NODE or topic != OWN):
        return 403
    return 200


async def reached(request: Request) -> Response:
    return text("limited" if request.is_limited else "reached")


def endpoint_of(path: str, access: RequiredRole) -> GuardedRoute:
    return GuardedRoute("GET", path, reached, access=access)


@pytest.mark.parametrize(
    ("header", "token"),
    [(b"Bearer abc", b"abc"), (b"bearer  abc ", b"abc"), (b"", b""), (b"Basic YTpi", b"Basic YTpi"), (b"Bearer", b"")],
)
def test_the_token_in_a_header(header: bytes, token: bytes) -> None:
    assert token_of(header) == token


def test_an_endpoint_cannot_be_made_without_its_access() -> None:
    with pytest.raises(TypeError, match="access"):
        GuardedRoute("GET", "/new", reached)  # type: ignore[call-arg]


def test_every_route_of_nsqd_has_its_access(nsqd: Nsqd) -> None:
    assert len(nsqd.app.routes) > 35
    for route in nsqd.app.routes:
        assert isinstance(route, GuardedRoute), route
        assert isinstance(route.access, RequiredRole), route


def test_no_route_lets_anybody_through_who_has_no_right_to_it(nsqd: Nsqd) -> None:
    """Tries all roles, limited to a topic or not, with every way to name a topic or two.

    Routes with the same access get the same verdicts, so of these only the first one is tried with all ways; the
    others with the topic, with another one and with none.
    """
    guard = Guard(everybody, trust_common_names=False)
    routes = [replace(route, handler=reached) for route in nsqd.app.routes]
    app = HttpApi(routes, log=logging.getLogger("nsqd.test"), guard=guard.check)
    few = {query: QUERIES[query] for query in ("topic=orders", "topic=other", "")}
    asked, tried = 0, set[RequiredRole]()
    for route in routes:
        path = route.path.replace(":option", "log_level")
        queries = few if route.access in tried else QUERIES
        tried.add(route.access)
        for token, (query, topic) in product(TOKENS, queries.items()):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            answer = ask(app, route.method, f"{path}?{query}", headers=headers)
            assert answer.status == expected_status(route.access, token, topic), (route, token, query)
            asked += answer.status == 200
            if answer.status == 200 and route.access.role is not None:
                assert answer.body == (b"limited" if token.endswith("-limited") else b"reached"), (route, token, query)
    assert asked > 1000


def test_nsqd_asks_its_guard_about_each_request() -> None:
    nsqd = Nsqd(guard=Guard(everybody, trust_common_names=False))
    assert nsqd.get("/stats").status == 401
    assert nsqd.get("/ping").status == 200
    assert ask(nsqd.app, "GET", "/stats", headers={"authorization": "Bearer publish"}).status == 403
    assert ask(nsqd.app, "GET", "/stats", headers={"authorization": "Bearer read"}).status == 200


@pytest.mark.parametrize("path", ["/pub", "/mpub"])
def test_the_short_path_judges_as_the_table_says(nsqd: Nsqd, path: str) -> None:
    """Its answers equal the application's, where 400 stands for a request that was allowed and is otherwise invalid."""
    (route,) = (route for route in nsqd.app.routes if route.path == path)
    guard = Guard(everybody, trust_common_names=False)
    for token, (query, topic) in product(TOKENS, QUERIES.items()):
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        answer = quick_answer(nsqd, guard, f"POST {path}?{query} HTTP/1.1\r\nHost: n\r\n{authorization}", b"x")
        let_through = answer in (200, 400)
        assert (200 if let_through else answer) == expected_status(route.access, token, topic), (token, query)


def quick_answer(nsqd: Nsqd, guard: Guard, head: str, body: bytes) -> int:
    handed_off: list[bytes] = []
    quick = QuickHttp(
        QuickRoutes(nsqd.broker, nsqd.publishing, guard=guard), hand_off=handed_off.append, wake=lambda: None
    )
    quick.receive(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, 0.0)
    nsqd.turn.finish()
    answer = b"".join(quick.bytes_to_send())
    assert not handed_off
    return int(answer.split(b" ", 2)[1])


def test_decisions_are_remembered_until_the_rights_change() -> None:
    now = [parse_rights(FILE)]
    guard = Guard(lambda: now[0], trust_common_names=False)
    question = (PUBLISH, b"topic=orders", b"Bearer secret", "")
    assert guard.refusal(*question) is None
    assert guard.refusal(*question) is None
    assert guard.refusal(PUBLISH, b"topic=other", b"Bearer secret", "") is FORBIDDEN
    assert guard.refusal(PUBLISH, b"topic=orders", b"Bearer x", "") is UNKNOWN
    now[0] = parse_rights("")
    assert guard.refusal(*question) is UNKNOWN


def test_a_decision_about_a_topic_is_none_about_the_node() -> None:
    guard = Guard(lambda: parse_rights(FILE), trust_common_names=False)
    question = (b"topic=orders", b"Bearer secret", "")
    assert guard.refusal(READ_TOPIC, *question) is None
    assert guard.refusal(READ_NODE, *question) is FORBIDDEN
    assert guard.refusal(OPEN, *question) is None


@pytest.mark.parametrize("query", [b"", b"topic=%zz", b"topic=a;b", b"channel=orders", b"topic=", b"topic=a%20b"])
def test_who_is_limited_to_topics_has_to_name_one(query: bytes) -> None:
    guard = Guard(lambda: parse_rights(FILE), trust_common_names=False)
    assert guard.refusal(PUBLISH, query, b"Bearer secret", "") is FORBIDDEN
    assert guard.refusal(PUBLISH, query, b"Bearer root", "") is None


@pytest.mark.parametrize("query", [b"", b"topic=", b"topic=a%20b"])
def test_a_limit_to_any_topic_is_still_no_right_to_the_node(query: bytes) -> None:
    rights = parse_rights(f'[[allow]]\nname = "a"\ntoken_sha256 = "{digest("a")}"\nroles = ["read"]\ntopics = ["*"]')
    guard = Guard(lambda: rights, trust_common_names=False)
    assert guard.refusal(READ_TOPIC, query, b"Bearer a", "") is FORBIDDEN
    assert guard.refusal(READ_TOPIC, b"topic=any", b"Bearer a", "") is None


def test_the_first_topic_counts_as_it_does_for_publishing() -> None:
    guard = Guard(lambda: parse_rights(FILE), trust_common_names=False)
    assert guard.refusal(PUBLISH, b"topic=other&topic=orders", b"Bearer secret", "") is FORBIDDEN


@pytest.mark.parametrize(("trust_common_names", "answer"), [(True, None), (False, UNKNOWN)])
def test_a_name_that_nobody_has_vouched_for_is_none(trust_common_names: bool, answer: object) -> None:
    guard = Guard(lambda: parse_rights(FILE), trust_common_names=trust_common_names)
    assert guard.refusal(PUBLISH, b"topic=orders", b"", "billing.example") is answer


def test_the_page_shows_the_table(nsqd: Nsqd) -> None:
    rows = re.findall(r"^\| `([A-Z]+ /\S*)` \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    table = [
        (
            f"{route.method} {route.path}",
            _roles_in(route.access),
            route.access.scope.value,
        )
        for route in nsqd.app.routes
    ]
    assert rows == table
