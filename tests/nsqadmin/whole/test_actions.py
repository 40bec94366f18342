"""What an action tells before, while and after it is carried out, on pages without a script, with real nodes."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import unescape
from itertools import count
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support.cluster import name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

needs_module("starlette")


FORM = {"content-type": "application/x-www-form-urlencoded"}
CHANNEL = {"topic": "orders", "channel": "billing"}
Fields = list[tuple[str, str]]


@dataclass
class Cluster:
    nodes: list[Nsqd]
    admin: Nsqadmin

    lookupd: Nsqlookupd

    @property
    def names(self) -> list[str]:
        return [name_of(node) for node in self.nodes]

    def page(self, path: str) -> str:
        return unescape(self.admin.http("GET", path).body.decode())

    def post(self, kind: str, fields: dict[str, str] | Fields, **headers: str) -> str:
        answer = self.admin.http(
            "POST", f"/actions/{kind}?fresh=1", urlencode(fields).encode(), headers={**FORM, **headers}
        )
        assert answer.status == 200, answer
        return unescape(answer.body.decode())

    def paused(self) -> list[bool]:
        return [node.channel("orders", "billing")["paused"] for node in self.nodes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with three_nodes(tmp_path, PATIENT) as it:
        yield it


@contextmanager
def three_nodes(folder: Path, patience: str) -> Iterator[Cluster]:
    """Run three nodes with 100 orders each that nobody bills, and an nsqadmin that has seen them."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        options = [
            "broadcast-address=127.0.0.1",
            f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}",
            "retention-time=1h",
        ]
        nodes = [stack.enter_context(Nsqd(folder / name, *options)) for name in ("n1", "n2", "n3")]
        for node in nodes:
            node.post("/topic/create?topic=orders")
            node.post("/channel/create?topic=orders&channel=billing")
            node.post("/mpub?topic=orders", b"\n".join(b"%d" % number for number in range(100)))
        eventually(lambda: len(lookupd.producers("orders")) == 3)
        quick = ("sample-interval=300ms", "discovery-interval=300ms", patience)
        admin = stack.enter_context(Nsqadmin(f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}", *quick))
        eventually(lambda: admin.json("GET", "/api/v2/health").json["totals"]["depth"] == 300)
        yield Cluster(nodes, admin, lookupd)
        assert "Traceback" not in admin.log


def form_of(page: str, button: str) -> tuple[str, Fields]:
    """Return the kind of action and the fields of the first form with this button."""
    found = [form for form in re.findall(r"<form.*?</form>", page, re.DOTALL) if f">{button}</button>" in form]
    assert found, page
    (kind,) = re.findall(r'action="/actions/(\w+)"', found[0])
    return kind, re.findall(r'name="(\w+)" value="([^"]*)"', found[0])


def test_a_pause_is_one_post_and_undo_changes_only_what_it_has_changed(cluster: Cluster) -> None:
    cluster.nodes[0].post("/channel/pause?topic=orders&channel=billing")
    kind, fields = form_of(cluster.page("/topics/orders/billing?fresh=1"), "Unpause")
    assert kind == "unpause_channel"
    receipt = cluster.post("pause_channel", CHANNEL)
    assert "Pause channel orders/billing: done on 3 of 3 nodes." in receipt
    assert cluster.paused() == [True, True, True]
    kind, fields = form_of(receipt, "Undo")
    assert kind == "unpause_channel"
    assert {value for name, value in fields if name == "node"} == set(cluster.names[1:])
    receipt = cluster.post(kind, fields)
    assert cluster.paused() == [True, False, False]
    kind, fields = form_of(receipt, "Undo")  # at once, before nodes are asked again
    assert kind == "pause_channel"
    assert {value for name, value in fields if name == "node"} == set(cluster.names[1:])


def test_a_silent_node_is_listed_waited_for_and_explained(tmp_path: Path) -> None:
    with three_nodes(tmp_path, "http-client-request-timeout=3s") as cluster:
        silent = cluster.names[2]
        cluster.nodes[2].send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: cluster.admin.json("GET", "/api/v2/health").json["silent"])
            plan = cluster.page("/actions/empty_channel?topic=orders&channel=billing")
            assert "3 addresses will be asked" in plan
            assert plan.count("does not answer now") == 1
            lines = cluster.post("pause_channel", CHANNEL, accept="application/x-ndjson").splitlines()
            assert set(json.loads(lines[0])["asked"]) == set(cluster.names)
            steps = [json.loads(line) for line in lines[1:4]]
            assert steps[-1] == {"step": silent, "done": False}, "the others do not wait for it"
            assert all(step["done"] for step in steps[:-1])
            receipt = "".join(lines[4:])
            assert f"done on 2 of 3 nodes, asked, no answer: {silent}" in receipt
            assert "it hangs or is overloaded, and may still do this later" in receipt
            assert "<details><summary>The original error</summary><pre>Post" in receipt
            assert ">Close</a>" in receipt
        finally:
            cluster.nodes[2].send_signal(signal.SIGCONT)
        eventually(lambda: cluster.paused() == [True, True, True])  # as it was said


def test_a_node_that_died_after_the_plan_is_asked_and_said_to_be_gone(cluster: Cluster) -> None:
    cluster.nodes[2].kill()
    receipt = cluster.post("empty_channel", {**CHANNEL, "typed": "billing"})
    assert f"Nothing listens at {cluster.names[2]}" in receipt
    assert "Done in part" in receipt


def test_creation_is_one_form_with_cancel_and_no_second_confirmation(cluster: Cluster) -> None:
    form = cluster.page("/actions/create_topic")
    assert ">Cancel</a>" in form
    assert "all 3 nodes that answer" in form
    receipt = cluster.post("create", {"topic": "made", "channel": "first", "on": "all"})
    assert "Done." in receipt
    for node in cluster.nodes:
        assert node.channel("made", "first")["depth"] == 0
    cluster.post("create", {"topic": "made.once", "on": "some", "node": cluster.names[1]})
    having = [bool(node.http("GET", "/stats?format=json&topic=made.once").json["topics"]) for node in cluster.nodes]
    assert having == [False, True, False]
    nothing = urlencode({"topic": "made.not", "on": "some"}).encode()
    answer = cluster.admin.http("POST", "/actions/create", nothing, headers=FORM)
    assert answer.status == 400
    assert b"Choose at least one node." in answer.body
    bad = cluster.admin.http("POST", "/actions/create", urlencode({"topic": "a b", "on": "all"}).encode(), headers=FORM)
    assert bad.status == 400
    assert b"letters, digits" in bad.body


def test_a_node_is_drained_until_it_is_safe_to_stop_and_then_taken_back(cluster: Cluster) -> None:
    node, name = cluster.nodes[2], cluster.names[2]
    node.post("/channel/create?topic=orders&channel=audit")
    node.post("/mpub?topic=orders", b"1\n2\n3\n4\n5")
    consumer = node.connect()
    consumer.subscribe("orders", "audit", ready=1)
    held = consumer.message()

    def page() -> str:
        return cluster.page(f"/nodes/{name}?fresh=1")

    eventually(lambda: "Drain node…" in page())
    plan = cluster.page(f"/nodes/drain?node={name}")
    assert "5 messages wait for 1 consumer" in plan
    assert "Safe to stop now: no" in plan
    assert "105 messages will not drain, and stay on its disk: 105 in 1 channel without consumers." in plan
    done = cluster.admin.http("POST", "/nodes/drain", f"node={name}".encode(), headers=FORM)
    assert b"Done." in done.body
    eventually(lambda: "refusing publishes from now on" in node.log)
    assert node.http("POST", "/pub?topic=orders", b"late").status == 503
    eventually(lambda: "Not yet safe to stop: 5 messages to deliver" in page())

    def states() -> dict[int, str | None]:
        return {it["tcp_port"]: it.get("state") for it in cluster.lookupd.get("/nodes")["producers"]}

    eventually(lambda: states() == {it.tcp[1]: "draining" if it is node else None for it in cluster.nodes})
    consumer.finish(held)
    for _ in range(4):
        consumer.finish(consumer.message())
    eventually(lambda: "Safe to stop now" in page())
    assert "105 messages will stay on its disk: 105 in 1 channel without consumers." in page()

    def severities() -> list[str]:
        findings = cluster.admin.json("GET", "/api/v2/diagnose").json["findings"]
        return [it["severity"] for it in findings if it["node"] == name]

    eventually(lambda: severities() == ["info"])  # on a busy machine it is slow for a moment

    undone = cluster.admin.http("POST", "/nodes/undrain", f"node={name}".encode(), headers=FORM)
    assert b"Done." in undone.body
    assert node.http("POST", "/pub?topic=orders", b"again").status == 200
    eventually(lambda: not any("state" in it for it in cluster.lookupd.get("/nodes")["producers"]))
    eventually(lambda: "Drain node…" in page())
    activity = cluster.admin.json("GET", "/api/v2/activity?kind=action").json["activity"]
    assert [it["what"] for it in activity][:2] == ["undrain_node", "drain_node"]
    assert cluster.admin.http("GET", "/nodes/drain?node=127.0.0.1:1").status == 404


def test_what_somebody_has_just_created_has_a_page_at_once(cluster: Cluster) -> None:
    """All nodes are asked once, at once: the next sample would be an hour away."""
    lookupd = f"lookupd-http-address=127.0.0.1:{cluster.lookupd.http_address[1]}"
    with Nsqadmin(lookupd, "sample-interval=1h", "discovery-interval=1h", PATIENT) as admin:
        eventually(lambda: admin.http("GET", "/topics/orders/billing").status == 200)
        for topic in map("fresh-{}".format, count()):
            assert admin.http("GET", f"/topics/{topic}").status == 404
            form = urlencode([("topic", topic), ("channel", "first"), ("on", "all")]).encode()
            assert admin.http("POST", "/actions/create", form, headers=FORM).status == 200
            page = admin.http("GET", f"/topics/{topic}/first")
            # The sample goes without a node that takes longer than a second, as on a busy machine.
            if all(it["health"] == "ok" for it in admin.json("GET", "/api/v2/nodes").json["nodes"]):
                break
        assert (page.status, page.body.count(b"Pause here")) == (200, 3)
        assert topic.encode() in admin.http("GET", "/topics").body

        def index() -> int:
            return int(admin.json("GET", "/api/v2/snapshot").json["snapshot"]["index"])

        def stands_still() -> bool:
            before = index()
            time.sleep(2)
            return index() == before

        # nsqlookupd's news of the topic makes nsqadmin ask once more, at most a second later.
        eventually(lambda: len(cluster.lookupd.producers(topic)) == 3)
        eventually(stands_still)
        before = index()
        for path in (f"/topics/{topic}", "/", "/nodes"):
            admin.http("GET", path)
        assert index() == before
