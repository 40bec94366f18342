"""What the page of a stranger can make a browser do to the daemons: nothing. Requests have a browser's headers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import name_of
from tests.support.process import Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

needs_module("starlette")


FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
# evil.example, which resolves to our address now: for the browser the page's own site.
REBOUND = {"host": "evil.example:4171", "user-agent": FIREFOX}
POSTED_BY_REBOUND = {**REBOUND, "origin": "http://evil.example:4171", "sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("node"), "broadcast-address=127.0.0.1") as it:
        yield it


@pytest.fixture(scope="module")
def admin(node: Nsqd) -> Iterator[Nsqadmin]:
    options = ("http-address=127.0.0.1:0", "allowed-host=nsqadmin", "allowed-host=admin.example")
    with Nsqadmin(f"nsqd-http-address={name_of(node)}", "sample-interval=200ms", *options) as it:
        yield it


@pytest.fixture
def orders(node: Nsqd, topic: str) -> str:
    node.post(f"/topic/create?topic={topic}")
    node.post(f"/pub?topic={topic}", b"secret")
    return topic


@pytest.fixture
def shown(admin: Nsqadmin, orders: str) -> str:
    """Return a topic that nsqadmin has seen."""
    eventually(lambda: admin.http("GET", f"/api/v2/topics/{orders}").status == 200)
    return orders


# nsqadmin


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/api/v2/snapshot", "/api/v2/messages/{}", "/api/topics", "/metrics", "/no"]
)
def test_a_rebound_page_reads_nothing_from_nsqadmin(admin: Nsqadmin, shown: str, path: str) -> None:
    answer = admin.http("GET", path.format(shown), headers=REBOUND)
    assert answer.status == 421
    assert b"--allowed-host=evil.example\n" in answer.body
    assert answer.body.count(b"\n") == 1


def test_a_rebound_page_changes_nothing_through_nsqadmin(admin: Nsqadmin, node: Nsqd, shown: str) -> None:
    for path in (f"/api/topics/{shown}", "/api/v2/actions", "/actions/pause_topic"):
        answer = admin.http("POST", path, b'{"action":"pause"}', headers=POSTED_BY_REBOUND)
        assert answer.status == 421
    assert not node.topic(shown)["paused"]


def test_a_foreign_name_is_refused_our_pages_without_a_browser_too(admin: Nsqadmin, shown: str) -> None:
    """A page may set User-Agent in some browsers, so that it proves nothing where messages can be read."""
    headers = {"host": "evil.example"}
    assert admin.http("GET", f"/api/v2/messages/{shown}", headers=headers).status == 421
    assert admin.http("GET", "/", headers=headers).status == 421


@pytest.mark.parametrize(
    "host",
    ["localhost:4171", "127.0.0.1", "[::1]:80", "10.1.2.3:4171", "nsqadmin:4171", "ADMIN.example", "a.localhost"],
)
def test_nsqadmin_is_called_by_its_own_names(admin: Nsqadmin, host: str) -> None:
    assert admin.http("GET", "/", headers={"host": host, "user-agent": FIREFOX}).status == 200


@pytest.mark.parametrize("path", ["/ping", "/healthz", "/metrics", "/api/topics"])
def test_probes_and_scripts_for_nsq_may_use_any_name(admin: Nsqadmin, path: str) -> None:
    headers = {"host": "whatever.cluster.local:4171", "user-agent": "curl/8.5.0"}
    assert admin.http("GET", path, headers=headers).status == 200


def test_a_star_is_for_a_proxy_that_checks_the_name(node: Nsqd) -> None:
    with Nsqadmin(f"nsqd-http-address={name_of(node)}", "allowed-host=*") as admin:
        assert admin.http("GET", "/", headers=REBOUND).status == 200


# nsqd and nsqlookupd

OTHER_SITES = (
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8000"},
)


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd("http-allowed-host=lookup.example") as it:
        yield it


@pytest.fixture(scope="module")
def strict_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("strict"), "http-same-site", "http-allowed-host=broker.example") as it:
        yield it


@pytest.mark.parametrize("headers", OTHER_SITES)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/topic/delete?topic={}"),
        ("POST", "/topic/empty?topic={}"),
        ("POST", "/topic/pause?topic={}"),
        ("POST", "/channel/create?topic={}&channel=c"),
        ("PUT", "/config/log_level"),
        ("POST", "/drain"),
    ],
)
def test_a_page_of_another_site_changes_nothing_at_nsqd(
    node: Nsqd, orders: str, headers: dict[str, str], method: str, path: str
) -> None:
    answer = node.http(method, path.format(orders), b"debug", headers=headers)
    assert (answer.status, answer.json["message"]) == (403, "FOREIGN_SITE")
    assert node.topic(orders)["channels"] == []
    assert not node.topic(orders)["paused"]


@pytest.mark.parametrize("headers", [{}, {"host": "nsqd.cluster.local:4151"}, {"user-agent": "Go-http-client/1.1"}])
def test_programs_notice_nothing(node: Nsqd, lookupd: Nsqlookupd, orders: str, headers: dict[str, str]) -> None:
    for daemon in (node, lookupd):
        assert daemon.http("POST", f"/topic/create?topic={orders}", headers=headers).status == 200
        assert daemon.http("GET", "/info", headers=headers).status == 200


def test_our_own_pages_may_change_things(node: Nsqd, orders: str) -> None:
    origin = f"http://127.0.0.1:{node.http_address[1]}"
    headers = {"origin": origin, "sec-fetch-site": "same-origin", "user-agent": FIREFOX}
    assert node.http("POST", f"/topic/pause?topic={orders}", headers=headers).status == 200


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/stats", REBOUND),
        ("GET", "/topic/read?topic={}", REBOUND),
        ("POST", "/topic/delete?topic={}", POSTED_BY_REBOUND),
        ("POST", "/topic/delete?topic={}", {"host": "evil.example", "origin": "http://evil.example"}),
    ],
)
def test_a_rebound_page_gets_nothing_from_nsqd(
    node: Nsqd, orders: str, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = node.http(method, path.format(orders), headers=headers)
    assert (answer.status, answer.json["message"]) == (421, "FOREIGN_HOST")
    assert "--http-allowed-host=evil.example" in answer.json["reason"]


def test_a_rebound_page_gets_nothing_from_nsqlookupd(lookupd: Nsqlookupd) -> None:
    assert lookupd.http("GET", "/nodes", headers=REBOUND).status == 421
    assert lookupd.http("POST", "/topic/create?topic=t", headers=OTHER_SITES[0]).status == 403
    assert lookupd.http("GET", "/nodes", headers={**REBOUND, "host": "lookup.example"}).status == 200
    assert lookupd.http("GET", "/ping", headers=REBOUND).status == 200


@pytest.mark.parametrize("headers", OTHER_SITES)
def test_publishing_from_another_site_is_nsqs_unless_the_option_says_otherwise(
    node: Nsqd, strict_node: Nsqd, orders: str, headers: dict[str, str]
) -> None:
    for path in (f"/pub?topic={orders}", f"/mpub?topic={orders}"):
        assert node.http("POST", path, b"from a page", headers=headers).status == 200
        answer = strict_node.http("POST", path, b"from a page", headers=headers)
        assert (answer.status, answer.json["message"]) == (403, "FOREIGN_SITE")
    assert orders not in {it["topic_name"] for it in strict_node.stats()["topics"]}


def test_with_the_option_programs_and_our_own_pages_publish(strict_node: Nsqd, topic: str) -> None:
    own = f"http://127.0.0.1:{strict_node.http_address[1]}"
    allowed = {"host": "broker.example", "origin": "http://broker.example", "user-agent": FIREFOX}
    for headers in ({}, {"host": "any.name"}, {"origin": own}, allowed):
        assert strict_node.http("POST", f"/pub?topic={topic}", b"x", headers=headers).status == 200
    assert strict_node.http("POST", f"/pub?topic={topic}", b"x", headers=POSTED_BY_REBOUND).status == 421
    assert strict_node.topic(topic)["message_count"] == 4
