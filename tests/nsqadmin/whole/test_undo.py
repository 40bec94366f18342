"""The undo of what loses a channel's messages: three real nodes, and pages without a script."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support.cluster import name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqd, Nsqlookupd, eventually, needs_module

needs_module("starlette")


FORM = {"content-type": "application/x-www-form-urlencoded"}
CHANNEL = {"topic": "orders", "channel": "billing", "typed": "billing"}
BODIES = [b"%0300d" % number for number in range(40)]
FORGETFUL = 2  # the node without retention, whose files are small


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

    def post(self, kind: str, fields: dict[str, str], status: int = 200, user: str = "", origin: str = "") -> str:
        named = {"X-Forwarded-User": user, "Origin": origin}
        headers = {**FORM, **{name: value for name, value in named.items() if value}}
        answer = self.admin.http("POST", f"/actions/{kind}", urlencode(fields).encode(), headers=headers)
        assert answer.status == status, answer
        return unescape(answer.body.decode())

    def depths(self) -> list[int]:
        return [node.channel("orders", "billing")["depth"] for node in self.nodes]

    def sees(self, depth: int) -> None:
        """Wait until nsqadmin has counted so many messages."""
        eventually(lambda: self.admin.json("GET", "/api/v2/health").json["totals"]["depth"] == depth)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Nsqd], Nsqlookupd]]:
    """Return three nodes, of which two keep messages for an hour, and an nsqlookupd."""
    folder = tmp_path_factory.mktemp("nodes")
    with ExitStack() as stack:
        lookupd = stack.enter_context(Nsqlookupd())
        options = ["broadcast-address=127.0.0.1", f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}"]
        kept = [*options, "retention-time=1h"]
        nodes = [stack.enter_context(Nsqd(folder / name, *kept)) for name in ("n1", "n2")]
        nodes.append(stack.enter_context(Nsqd(folder / "n3", *options, "max-bytes-per-file=1000")))
        yield nodes, lookupd


@pytest.fixture
def patience() -> str:
    return PATIENT


a_node_hangs = pytest.mark.parametrize("patience", ["http-client-request-timeout=5s"], ids=[""])


@pytest.fixture
def cluster(daemons: tuple[list[Nsqd], Nsqlookupd], patience: str) -> Iterator[Cluster]:
    """Return the nodes with 40 orders each that nobody bills, and an nsqadmin of the test's own."""
    nodes, lookupd = daemons
    for node in nodes:
        node.post("/topic/create?topic=orders")
        node.post("/channel/create?topic=orders&channel=billing")
        for start in range(0, len(BODIES), 5):  # each time more than fits into a file of the forgetful node
            node.post("/mpub?topic=orders", b"\n".join(BODIES[start : start + 5]))
    eventually(lambda: len(lookupd.producers("orders")) == 3)
    quick = ("sample-interval=300ms", "discovery-interval=300ms", patience)
    try:
        with Nsqadmin(f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}", *quick) as admin:
            it = Cluster(nodes, admin, lookupd)
            it.sees(120)
            yield it
            assert "Traceback" not in admin.log
    finally:
        for daemon in (*nodes, lookupd):
            daemon.post("/topic/delete?topic=orders")


def record_in(page: str, button: str = "Undo") -> dict[str, str]:
    """Return the fields of the page's first form that undoes something."""
    forms = re.findall(r'<form[^>]*action="/actions/undo".*?</form>', page, re.DOTALL)
    assert forms, page
    assert f">{button}</button>" in forms[0]
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', forms[0]))


def consumed(node: Nsqd) -> Counter[bytes]:
    """Receive and finish as many messages as were published, and return how often each body came."""
    client = node.connect()
    client.subscribe("orders", "billing", ready=100)
    messages = client.messages(len(BODIES))
    client.finish(*messages)
    client.in_step()
    client.close()
    return Counter(message.body for message in messages)


@pytest.mark.parametrize("kind", ["empty_channel", "seek_channel", "delete_channel"])
def test_all_messages_are_back_on_every_node_that_keeps_them(cluster: Cluster, kind: str) -> None:
    kept = cluster.nodes[:2]
    fields = {**CHANNEL, **({"from": "latest"} if kind == "seek_channel" else {})}
    dialog = cluster.page(f"/actions/{kind}?{urlencode(fields)}")
    assert "Can be undone for as long as the nodes keep the messages." in dialog
    assert "cannot be undone" not in dialog
    receipt = cluster.post(kind, fields)
    assert "Undo is possible for as long as the nodes keep the messages." in receipt, "one node has no retention"
    eventually(lambda: cluster.nodes[FORGETFUL].http("GET", "/topic/log?topic=orders").json["first"] > 0)
    undone = cluster.post("undo", record_in(receipt))
    assert undone.count("40 of 40 are back<") == 2
    (gone,) = re.findall(r"(\d+) are gone: history no longer has them", undone)
    assert f"{40 - int(gone)} of 40" in undone
    assert "Done in part." in undone
    assert cluster.depths() == [40, 40, 40 - int(gone)]
    assert [consumed(node) for node in kept] == [Counter(BODIES)] * 2
    answer = cluster.post("undo", record_in(receipt), status=409)
    assert "this has been undone already" in answer
    assert sum(cluster.depths()[:2]) == 0, "a second undo brings nothing back"
    activity = cluster.admin.json("GET", "/api/v2/activity").json["activity"]
    (entry,) = [it for it in activity if it["what"] == "restore_channel"]
    verb = {"empty_channel": "emptied", "seek_channel": "moved", "delete_channel": "deleted"}[kind]
    assert entry["text"] == f"undid: {verb} orders/billing, {120 - int(gone)} messages back, {gone} gone"
    assert entry["result"] == "partly"


def test_retention_by_time_says_until_when_and_activity_has_undo_as_well(cluster: Cluster) -> None:
    before = dict(zip(cluster.names, cluster.depths(), strict=True))
    on = [("node", name) for name in cluster.names[:2]]
    answer = cluster.admin.http(
        "POST", "/actions/delete_channel", urlencode([*CHANNEL.items(), *on]).encode(), headers=FORM
    )
    receipt = unescape(answer.body.decode())
    assert re.search(r"Undo is possible until <time [^>]*>(\d\d \w+ )?\d\d:\d\d(:\d\d)? UTC", receipt), receipt
    activity = cluster.page("/activity")
    assert record_in(activity) == record_in(receipt)
    cluster.post("undo", record_in(activity))
    assert dict(zip(cluster.names, cluster.depths(), strict=True)) == before
    cluster.sees(120)
    assert 'action="/actions/undo"' not in cluster.page("/activity")


def test_a_deletion_and_its_undo_are_one_entry_of_activity_each(cluster: Cluster) -> None:
    def status() -> int:
        return cluster.admin.http("GET", "/api/v2/topics/orders/billing").status

    receipt = cluster.post("delete_channel", CHANNEL)
    eventually(lambda: status() == 404)
    cluster.post("undo", record_in(receipt))
    eventually(lambda: status() == 200)
    cluster.page("/nodes?fresh=1")
    activity = cluster.admin.json("GET", "/api/v2/activity?channel=billing").json["activity"]
    assert [it["what"] for it in activity] == ["restore_channel", "delete_channel"]


@a_node_hangs
def test_a_node_that_is_silent_at_the_undo_is_named_and_done_by_a_retry(cluster: Cluster) -> None:
    silent = cluster.names[1]
    receipt = cluster.post("empty_channel", CHANNEL)
    cluster.nodes[1].send_signal(signal.SIGSTOP)
    try:
        undone = cluster.post("undo", record_in(receipt))
        assert re.search(rf"{silent}</th>.*?does not answer: nothing could be undone there", undone)
        retry = record_in(undone, "Retry where it failed")
    finally:
        cluster.nodes[1].send_signal(signal.SIGCONT)
    assert cluster.nodes[0].channel("orders", "billing")["depth"] == 40
    again = cluster.post("undo", retry)
    assert f'{silent}</th><td data-label="Messages"><span class="tick">✓ 40 of 40 are back' in again
    assert cluster.names[0] not in again.partition('id="sheet"')[2], "what is undone is not asked again"
    assert consumed(cluster.nodes[1]) == Counter(BODIES)


@a_node_hangs
def test_a_node_that_was_silent_at_the_action_has_lost_nothing_and_is_not_named(cluster: Cluster) -> None:
    cluster.nodes[1].send_signal(signal.SIGSTOP)
    try:
        receipt = cluster.post("empty_channel", CHANNEL)
        assert f"Cannot be undone on {cluster.names[1]}" not in receipt
        undone = cluster.post("undo", record_in(receipt))
    finally:
        cluster.nodes[1].send_signal(signal.SIGCONT)
    assert cluster.names[1] not in undone.partition('id="sheet"')[2]
    eventually(lambda: not cluster.admin.json("GET", "/api/v2/health").json["silent"])
    assert cluster.nodes[1].channel("orders", "billing")["depth"] == 40, "it carries out nothing when it goes on"
    assert cluster.nodes[0].channel("orders", "billing")["depth"] == 40


def test_emptying_a_topic_cannot_be_undone_and_the_api_undoes_by_the_receipt(cluster: Cluster) -> None:
    dialog = cluster.page("/actions/delete_topic?topic=orders")
    assert "This cannot be undone." in dialog
    action = {"kind": "empty_channel", "topic": "orders", "channel": "billing", "nodes": cluster.names[:1]}
    receipt = cluster.admin.json("POST", "/api/v2/actions", action).json
    assert cluster.depths() == [0, 40, 40]
    undone = cluster.admin.json("POST", "/api/v2/undo", {"undo": receipt["undo"]})
    assert (undone.status, undone.json["result"]) == (200, "ok")
    assert undone.json["nodes"][0]["restored"] == 40
    assert cluster.depths() == [40, 40, 40]
    assert cluster.admin.json("POST", "/api/v2/undo", {"undo": receipt["undo"]}).status == 409
    assert cluster.admin.json("POST", "/api/v2/undo", {"undo": "nothing"}).status == 404
    empty = json.dumps({"action": "empty"}).encode()
    assert cluster.admin.http("POST", "/api/topics/orders/billing", empty).status == 200
    newest = cluster.admin.json("GET", "/api/v2/activity?kind=action").json["activity"][0]
    assert (newest["what"], newest.get("undo", "")) == ("empty_channel", ""), "NSQ's own API asks no more than NSQ does"


def test_an_undo_needs_the_right_of_the_action(cluster: Cluster, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text(
        '[[role]]\nname="a"\nusers=["ana"]\ncan=["admin"]\n[[role]]\nname="b"\nusers=["bob"]\ncan=["operator"]\n'
    )
    options = (f"lookupd-http-address=127.0.0.1:{cluster.lookupd.http_address[1]}", f"roles-file={roles}")
    with Nsqadmin(*options, "sample-interval=300ms", PATIENT) as admin:
        it = Cluster(cluster.nodes, admin, cluster.lookupd)
        eventually(lambda: admin.json("GET", "/api/v2/health", X_Forwarded_User="ana").json["totals"]["depth"] == 120)
        receipt = it.post("empty_channel", CHANNEL, user="ana")
        refused = it.post("undo", record_in(receipt), status=403, user="bob")
        assert "Nothing was undone" in refused
        assert it.depths() == [0, 0, 0]
        foreign = it.post("undo", record_in(receipt), status=403, user="ana", origin="http://evil.test")
        assert "back" not in foreign
        assert it.depths() == [0, 0, 0]
        activity = admin.http("GET", "/activity", headers={"X-Forwarded-User": "bob"}).body
        assert b"refused to undo: emptied orders/billing" in activity
        assert b'action="/actions/undo"' not in activity
        it.post("undo", record_in(receipt), user="ana")
        assert it.depths()[:2] == [40, 40]


def test_what_somebody_empties_without_nsqadmin_is_in_activity(cluster: Cluster) -> None:
    """In a channel of its own: what the test before this one emptied, less than a second ago, may be news as well."""

    def entries() -> list[dict[str, object]]:
        found: list[dict[str, object]] = cluster.admin.json("GET", "/api/v2/activity?channel=audit").json["activity"]
        return [it for it in found if it["what"] == "empty_channel"]

    for node in cluster.nodes:
        node.post("/channel/create?topic=orders&channel=audit")
    eventually(lambda: cluster.admin.http("GET", "/api/v2/topics/orders/audit").status == 200)
    cluster.nodes[0].post("/channel/empty?topic=orders&channel=audit")
    cluster.post("empty_channel", {"topic": "orders", "channel": "audit", "typed": "audit", "node": cluster.names[1]})
    # Nodes are asked every 15 seconds, and at once when somebody pauses something.
    cluster.nodes[0].post("/channel/pause?topic=orders&channel=audit")
    eventually(lambda: len(entries()) == 2, timeout=60)
    here, outside = sorted(entries(), key=lambda it: bool(it["is_outside"]))
    assert outside["text"] == f"channel orders/audit was emptied on {cluster.names[0]}"
    assert (here["nodes"], here["is_outside"]) == ([cluster.names[1]], False)
