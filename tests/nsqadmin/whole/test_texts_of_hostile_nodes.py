"""nsqadmin with nodes that send anything: their texts appear as text on every page, and no name breaks a link.

Also with a node that accepts connections and never answers: every page is served, and names the node.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urldefrag, urlsplit

import pytest

from tests.support.json_server import JsonServer
from tests.support.process import PATIENT, Nsqadmin, eventually, needs_module

needs_module("starlette")
needs_module("jinja2")


LIMIT = 30.0  # seconds that a page may take here
EVIL = """<script>alert(1)</script><img src=x onerror=alert(1)>"'>&amp;{{7*7}}"""
HARD = [EVIL, "a/b?c=d#e%20f%2Fg"]  # names that break HTML, and links
NAMES = [*HARD, "ünïcode 中\u202e\x01", "line\r\nbreak", "..", "", "long" * 500, "orders"]


def stats(names: list[str] = NAMES) -> dict[str, Any]:
    texts = (
        "client_id", "hostname", "version", "remote_address", "user_agent", "auth_identity", "topology_region",
        "topology_zone", "tls_version", "tls_cipher_suite", "tls_negotiated_protocol",
    )  # fmt: skip
    client: dict[str, Any] = dict.fromkeys(texts, EVIL)
    client |= {"auth_identity_url": "javascript:alert(1)", "authed": True, "tls": True, "state": 3}
    counts: dict[str, Any] = {"depth": 1500, "message_count": 9, "in_flight_count": 1, "requeue_count": 7}
    counts |= {"policy_counts": {EVIL: 3, f"{EVIL}, dropped": 4}}
    channels = [
        [
            {"channel_name": it, **counts, "paused": True, "paused_why": EVIL, "client_count": 1, "clients": [client]}
            for it in dict.fromkeys((name, EVIL))
        ]
        for name in names
    ]
    return {
        "version": EVIL,
        "health": EVIL,
        "policy_digest": EVIL,
        "policy_error": EVIL,
        "start_time": 1_700_000_000,
        "topics": [{"topic_name": name, **counts, "channels": channels[at]} for at, name in enumerate(names)],
        "producers": [{**client, "pub_counts": [{"topic": name, "count": 5} for name in names]}],
    }


def nsqd(path: str, arguments: dict[str, str]) -> Any:
    if path == "/stats":
        return stats([arguments["topic"]] if "topic" in arguments else NAMES)
    if path == "/info":
        return {"version": EVIL, "hostname": EVIL}
    if path == "/config/policy":
        demand = {EVIL: {"value": {EVIL: [EVIL]}, "line": 7, "dry_run": False}}
        file = {"path": EVIL, "digest": EVIL, "read_at": 1_700_000_000_000_000_000, "error": EVIL}
        return {**file, "topic": demand, "channel": demand}
    if path == "/topic/log" and not arguments:
        return 400, "it keeps history"
    return 404, json.dumps({"message": EVIL})


@contextmanager
def hostile_nodes() -> Iterator[str]:
    """Return the address of an nsqlookupd that lists a node that answers, one that refuses, and an impossible one."""

    def lookupd(path: str, arguments: dict[str, str]) -> Any:
        told = {"hostname": EVIL, "version": EVIL, "remote_address": EVIL, "tcp_port": 1, "topology_zone": EVIL}
        topics = {"topics": NAMES, "tombstones": [True] * len(NAMES)}
        producers = [
            {**told, "broadcast_address": "127.0.0.1", "http_port": good.port, **topics},
            {**told, "broadcast_address": "127.0.0.1", "http_port": refusing.port, **topics},
            {**told, "broadcast_address": EVIL, "http_port": 1, **topics},
        ]
        is_known = arguments.get("topic") in NAMES
        return {
            "/nodes": {"producers": producers},
            "/lookup": {"producers": producers} if is_known else (404, EVIL),
            "/topics": {"topics": [*NAMES, "left over " + EVIL]},
            "/channels": {"channels": NAMES},
            "/info": {"version": EVIL},
        }.get(path, (404, EVIL))

    with (
        JsonServer(nsqd) as good,
        JsonServer(lambda path, arguments: (500, EVIL)) as refusing,
        JsonServer(lookupd) as directory,
    ):
        yield directory.address


@pytest.fixture(scope="module")
def admin() -> Iterator[Nsqadmin]:
    with (
        hostile_nodes() as lookupd,
        Nsqadmin(f"lookupd-http-address={lookupd}", "sample-interval=1s", "enable-publish", PATIENT) as it,
    ):
        eventually(lambda: b"alert" in it.http("GET", "/consumers?group=none&fresh=1", timeout=LIMIT).body, LIMIT)
        yield it
        assert "Traceback" not in it.log


class Page(HTMLParser):
    """A page as a browser reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def links(self) -> list[str]:
        found = [attributes.get("href", "") for tag, attributes in self.tags if tag == "a"]
        return [urldefrag(it).url for it in found if urldefrag(it).url]

    @property
    def text(self) -> str:
        return "".join(self.texts)


def check_harmless(page: Page, path: str) -> None:
    for tag, attributes in page.tags:
        assert tag != "img", path
        assert tag != "script" or attributes["src"].startswith("/static/"), path
        assert not [name for name in attributes if name.startswith("on")], path
        addresses = [attributes.get(name, "") for name in ("href", "src", "action", "formaction")]
        assert not [it for it in addresses if not re.match(r"/|#|\?|$", it)], (path, addresses)
    assert "49" not in re.findall(r"&amp;(\d+)", page.text), path


def leads_nowhere(path: str) -> bool:
    """Return whether a link cannot work.

    Browsers read `/topics/..` as `/`, and there is no other way to write it; an empty name cannot be written at all.
    """
    return bool({"", "..", "."}.intersection(path.partition("?")[0].split("/")[1:]))


def is_more_of_the_same(link: str) -> bool:
    """Return whether a link leads to a tab or dialog of a topic that has no hard name. Of those, the main pages are enough."""
    parts = urlsplit(link)
    steps = parts.path.split("/")
    named = unquote(steps[2]) if steps[1] == "topics" and steps[2:] else dict(parse_qsl(parts.query)).get("topic", "")
    return bool(parts.query) and named in NAMES and named not in HARD


def test_on_every_page_that_is_linked_texts_are_text_and_links_work(admin: Nsqadmin) -> None:
    seen, waiting = {"/"}, ["/", "/consumers?group=none", "/topics?filter=" + quote(EVIL), "/activity", "/help"]
    shown = 0
    while waiting:
        path = waiting.pop()
        if leads_nowhere(path):
            continue
        answer = admin.http("GET", path, timeout=LIMIT)
        assert answer.status < 500, (path, answer)
        if path.startswith(("/topics/", "/nodes/")):
            assert answer.status == 200, path
        assert answer.headers["x-content-type-options"] == "nosniff"
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        page = Page(answer.body.decode())
        check_harmless(page, path)
        shown += EVIL in page.text
        for link in page.links:
            # One sort and one filter are enough; JSON has its own test, and endless streams have none.
            if (
                link not in seen
                and not link.startswith("/api/")
                and not re.search(r"[?&](sort[a-z-]*|filter|span)=", link)
                and not is_more_of_the_same(link)
            ):
                seen.add(link)
                waiting.append(link)
    assert shown > 100, shown
    assert len(seen) > 150, len(seen)


@pytest.mark.parametrize(
    "path",
    [
        "/api/topics",
        "/api/topics?inactive=true",
        "/api/nodes",
        "/api/counter",
        "/api/v2/snapshot",
        "/api/v2/nodes",
        "/jump?q=script",
        *(f"/api/topics/{quote(name, safe='')}" for name in NAMES if name not in ("", "..")),
        *(f"/api/topics/{quote(name, safe='')}/{quote(EVIL, safe='')}" for name in NAMES if name not in ("", "..")),
    ],
)
def test_in_json_they_are_strings(admin: Nsqadmin, path: str) -> None:
    answer = admin.http("GET", path, timeout=LIMIT)
    assert answer.status == 200, answer
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert EVIL in list(strings_in(answer.json))


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        yield from value.split(":", 1)[:1]
    elif isinstance(value, dict | list):
        for it in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from strings_in(it)


def test_a_download_has_a_name_that_a_header_can_hold(admin: Nsqadmin) -> None:
    for name in NAMES[:-1]:
        if name not in ("", ".."):
            path = f"/api/v2/messages/{quote(name, safe='')}?format=ndjson"
            answer = admin.http("GET", path, timeout=LIMIT)
            assert answer.status == 200, (name, answer)
            assert re.fullmatch(r'attachment; filename="[\w.-]+"', answer.headers["content-disposition"], re.ASCII)


def test_metrics_stay_lines(admin: Nsqadmin) -> None:
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    line = re.compile(rf"(?:#.*|[a-z_]+(?:\{{{label}(?:,{label})*\}})? \S+)").fullmatch
    lines = admin.http("GET", "/metrics", timeout=LIMIT).body.decode().removesuffix("\n").split("\n")
    assert not [it for it in lines if not line(it)]


def test_a_node_that_never_answers_is_named_on_pages_that_come_all_the_same() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging, JsonServer(nsqd) as good:
        silent = f"127.0.0.1:{hanging.getsockname()[1]}"
        options = (f"nsqd-http-address={silent}", f"nsqd-http-address={good.address}")
        with Nsqadmin(*options, "http-client-request-timeout=1s", "sample-interval=1s") as admin:

            def page(path: str) -> str:
                answer = admin.http("GET", path, timeout=LIMIT)
                assert answer.status == 200, answer
                return Page(answer.body.decode()).text

            eventually(lambda: "did not answer in time" in page("/nodes") and "orders" in page("/topics"), LIMIT)
            for path in ("/", "/topics", "/topics/orders", "/topics/orders/orders", "/consumers", "/lookup"):
                for fresh in ("", "?fresh=1"):
                    assert silent in page(path + fresh), path
            assert "orders" in page("/topics")
            assert "did not answer in time" in page(f"/nodes/{quote(silent, safe='')}")
            # On a busy machine the other one may not answer within that second either.
            documents = eventually(lambda: (it := told(admin, "/api/topics/orders")).get("nodes") and it, LIMIT)
            assert documents["nodes"][0]["node"] == good.address
            assert silent in documents["message"]
            assert "Traceback" not in admin.log


def told(admin: Nsqadmin, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = admin.http("GET", path, timeout=LIMIT).json
    return answer
