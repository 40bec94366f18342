"""Buried messages in nsqadmin, on two real nsqd: seen, kicked, discarded, and with a node that hangs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.cluster import name_of
from tests.support.process import Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

needs_module("starlette")

pytestmark = pytest.mark.e2e

TAB = "/topics/t/c?tab=buried"
COUNT = 30
HTML = b"<script>alert(1)</script>"


@dataclass
class Two:
    """Two nodes that have each buried 30 messages of channel c."""

    nodes: list[Nsqd]
    admin: Nsqadmin

    @property
    def count(self) -> int:
        totals = self.admin.json("GET", "/api/v2/health").json["totals"]
        return int(totals["buried_count"])

    def text(self, path: str = TAB) -> str:
        answer = self.admin.http("GET", path)
        assert answer.status == 200, answer
        return unescape(answer.body.decode())

    def post(self, path: str, form: str, status: int = 200) -> str:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = self.admin.http("POST", path, form.encode(), headers=headers)
        assert answer.status == status, answer
        return unescape(answer.body.decode())


def bury(node: Nsqd) -> None:
    node.post("/topic/create?topic=t")
    node.post("/channel/create?topic=t&channel=c")
    node.connect().publish("t", HTML, *[b'{"n":%d,"secret":"s"}' % number for number in range(COUNT - 1)])
    client = node.connect()
    client.identify(client_id="worker-1")
    client.subscribe("t", "c", ready=COUNT)
    for message in client.messages(COUNT):
        client.send(b"REQ %b 0\n" % message.id)
    assert eventually(lambda: node.channel("t").get("buried_count") == COUNT)
    client.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[policy]]\nchannel = "c"\nmax_attempts = 1\n')
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        options = ["broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"]
        options.append(f"policy-file={policy}")
        nodes = [stack.enter_context(Nsqd(tmp_path / name, *options)) for name in ("n1", "n2")]
        for node in nodes:
            bury(node)
        eventually(lambda: len(lookupd.producers("t")) == 2)
        quick = ("sample-interval=300ms", "discovery-interval=300ms", "http-client-request-timeout=2s")
        admin = stack.enter_context(Nsqadmin(f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}", *quick))
        it = Two(nodes, admin)
        eventually(lambda: it.count == 2 * COUNT)
        yield it
        assert "Traceback" not in admin.log


def test_the_reasons_and_the_messages_of_all_nodes_are_shown(two: Two) -> None:
    text = two.text()
    assert "1 attempts, the last one requeued" in text
    assert "worker-1" in text
    assert all(name_of(node) in text for node in two.nodes)
    assert f'title="{2 * COUNT}"' in text
    assert text.count("<tr data-row>") == 1 + 20  # a reason, and a page of messages
    raw = two.admin.http("GET", f"{TAB}&limit=100").body
    assert raw.count(b"<tr data-row>") == 1 + 2 * COUNT
    assert HTML not in raw
    assert b"&lt;script&gt;" in raw


def test_pages_go_on_to_the_last_message(two: Two) -> None:
    seen, path = 0, TAB
    for _ in range(4):
        text = two.text(path)
        seen += text.count("data-detail")
        _, found, rest = text.partition('<p class="pager"><a class="button" href="')
        if not found:
            break
        path = rest.partition('"')[0]
    assert seen == 2 * COUNT


def test_one_message_and_none(two: Two) -> None:
    page = f"/buried?topic=t&channel=c&node={quote(name_of(two.nodes[0]))}"
    raw = two.admin.http("GET", f"{page}&sequence=0").body
    assert HTML not in raw
    assert b"&lt;script&gt;" in raw
    assert two.admin.http("GET", f"{page}&sequence=999").status == 404
    assert two.admin.http("GET", "/buried?topic=t&channel=c&node=evil:80&sequence=1").status == 404


def test_a_node_that_hangs_is_named_and_not_counted_as_zero(two: Two) -> None:
    hung = two.nodes[1]
    hung.send_signal(signal.SIGSTOP)
    try:
        text = two.text()
        assert f"{name_of(hung)}</strong> has not told what is buried there" in text
        assert f"{COUNT} messages when last seen, which the figures below do not have" in text
        assert "All nodes that answer" in text
        assert f"{name_of(hung)}</strong> was not looked at" in text
    finally:
        hung.send_signal(signal.SIGCONT)
    eventually(lambda: "has not told" not in two.text())
