"""Incidents with real processes: one for a node that stops, what changed before, marks, and who may see and do what."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.process import PATIENT, Nsqadmin, eventually, needs_module

needs_module("starlette")
needs_module("jinja2")


QUICK = ("sample-interval=200ms", "discovery-interval=200ms")
TENANTS = 12
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a cluster in which twelve tenants have a channel that nobody reads, and messages on the first node."""
    with a_cluster(tmp_path_factory.mktemp("cluster")) as it:
        for tenant in map(str, range(TENANTS)):
            for node in it.nodes:
                node.post(f"/topic/create?topic=tenant_{tenant}.events")
                node.post(f"/channel/create?topic=tenant_{tenant}.events&channel=indexer")
            it.nodes[0].post(f"/pub?topic=tenant_{tenant}.events", b"one")
        it.wait_for(f"tenant_{TENANTS - 1}.events")
        yield it


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Nsqadmin]:
    with Nsqadmin(*cluster.lookupd_options, *QUICK) as it:
        eventually(lambda: wrong(it))
        yield it
        assert "Traceback" not in it.log


def wrong(admin: Nsqadmin, **headers: str) -> dict[str, dict[str, Any]]:
    """Return the incidents that are no remarks, by what they are about."""
    answer = admin.json("GET", "/api/v2/incidents", **headers)
    return {it["subject"]: it for it in answer.json["incidents"] if it["severity"] != "info"}


def one(admin: Nsqadmin, subject: str, **expected: object) -> dict[str, Any]:
    """Wait until there is an incident about this, with these fields."""

    def found() -> dict[str, Any] | None:
        it = wrong(admin).get(subject)
        return it if it is not None and all(it[name] == value for name, value in expected.items()) else None

    return eventually(found)  # type: ignore[no-any-return]


def marked(admin: Nsqadmin, key: str, **form: str) -> int:
    return admin.http("POST", f"/incidents/{key}/mark", urlencode(form).encode(), headers=FORM).status


def page(admin: Nsqadmin, path: str) -> str:
    return admin.http("GET", path).body.decode()


def test_a_rule_over_similar_names_is_one_incident(admin: Nsqadmin) -> None:
    it = eventually(lambda: (found := one(admin, "tenant_*.events/indexer"))["now"]["channels"] == TENANTS and found)
    assert (it["cause"], it["rule"], it["now"]["waiting"]) == ("pattern", "D3", TENANTS)
    whole = admin.json("GET", f"/api/v2/incidents/{it['key']}").json
    assert len(whole["findings"]) == TENANTS

    def has_a_card_for_each() -> bool:
        cards = page(admin, "/").count('class="incident ')
        return cards == len(admin.json("GET", "/api/v2/incidents").json["incidents"])

    eventually(has_a_card_for_each)  # on a busy machine, nodes are slow for a moment
    assert admin.json("GET", "/api/v2/incidents/nosuch").status == 404
    assert admin.http("GET", "/incidents/nosuch").status == 404


def test_the_text_of_an_incident_needs_no_script(admin: Nsqadmin) -> None:
    it = one(admin, "tenant_*.events/indexer")
    answer = admin.http("GET", f"/incidents/{it['key']}.txt")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    assert text.startswith("PROBLEM: tenant_*.events/indexer: ")
    assert f"/incidents/{it['key']}" in text
    assert "tenant_0.events/indexer: No consumer is connected" in text
    assert "Timeline" in page(admin, f"/incidents/{it['key']}")


def test_what_was_done_here_just_before_is_said(admin: Nsqadmin, cluster: Cluster, topic: str) -> None:
    cluster.nodes[0].post(f"/topic/create?topic={topic}")
    cluster.nodes[0].post(f"/channel/create?topic={topic}&channel=c")
    cluster.wait_for(topic, 1)
    pause = {"kind": "pause_channel", "topic": topic, "channel": "c"}
    eventually(lambda: admin.json("POST", "/api/v2/plan", pause).status == 200)
    assert admin.json("POST", "/api/v2/actions", pause).json["result"] == "ok"
    cluster.nodes[0].post(f"/pub?topic={topic}", b"waits")
    it = one(admin, f"{topic}/c", rule="D1")
    assert "pause_channel" in [change["what"] for change in it["changes"]]
    shown = page(admin, f"/incidents/{it['key']}")
    assert f"pause channel {topic}/c" in shown
    assert "/actions/unpause_channel" in shown


def test_who_looks_at_it_and_for_how_long_it_is_silent(admin: Nsqadmin) -> None:
    key = one(admin, "tenant_*.events/indexer")["key"]
    assert marked(admin, key, do="acknowledge", note="on it") == 200
    it = one(admin, "tenant_*.events/indexer", state="acknowledged")
    assert (it["acknowledged"]["by"], it["acknowledged"]["note"]) == ("127.0.0.1", "on it")
    assert "127.0.0.1: on it" in page(admin, "/")
    assert marked(admin, key, do="mute", **{"for": "1h"}) == 200
    muted = one(admin, "tenant_*.events/indexer", state="muted")["muted"]
    assert 3590 < muted["until"] - muted["at"] < 3610
    assert "1 muted" in page(admin, "/")
    assert 'nsqadmin_incidents{severity="problem",state="muted"} 1' in page(admin, "/metrics")
    done = [it["what"] for it in admin.json("GET", "/api/v2/activity?kind=action").json["activity"]]
    assert done[:2] == ["mute_incident", "acknowledge_incident"]
    assert marked(admin, key, do="unmute") == 200
    assert marked(admin, key, do="unacknowledge") == 200
    one(admin, "tenant_*.events/indexer", state="open")


@pytest.mark.parametrize(
    ("form", "status"),
    [({"do": "explode"}, 400), ({"do": "mute", "for": "ever"}, 400), ({"do": "mute"}, 400), ({}, 400)],
)
def test_a_mark_that_is_not_understood(admin: Nsqadmin, form: dict[str, str], status: int) -> None:
    assert marked(admin, one(admin, "tenant_*.events/indexer")["key"], **form) == status


def test_rights(cluster: Cluster, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text(
        '[[role]]\nname="one"\nusers=["ben"]\ncan=["operator"]\ntopics=["tenant_3.*"]\n'
        '[[role]]\nname="two"\nusers=["carl"]\ncan=["viewer"]\ntopics=["tenant_3.*"]\n'
        '[[role]]\nname="all"\nusers=["ana"]\ncan=["operator"]\n'
    )
    with Nsqadmin(*cluster.lookupd_options, *QUICK, PATIENT, f"roles-file={roles}") as admin:
        ana, ben = {"x-forwarded-user": "ana"}, {"x-forwarded-user": "ben"}
        subject = "tenant_*.events/indexer"
        eventually(lambda: wrong(admin, **ana).get(subject, {"now": {}})["now"].get("channels") == TENANTS)
        whole, part = wrong(admin, **ana)[subject], wrong(admin, **ben)[subject]
        assert (part["key"], part["now"]["channels"], part["then"]) == (whole["key"], 1, None)
        shown = admin.http("GET", f"/incidents/{part['key']}", headers=ben).body.decode()
        assert "tenant_3.events" in shown
        assert "tenant_4.events" not in shown
        body = urlencode({"do": "mute", "for": "1h"}).encode()
        path = f"/incidents/{part['key']}/mark"
        carl = {"x-forwarded-user": "carl"}
        assert admin.http("POST", path, body, headers={**FORM, **carl}).status == 403
        assert admin.http("POST", path, body, headers={**FORM, **ben}).status == 200
        assert (wrong(admin, **ana)[subject]["state"], wrong(admin, **ben)[subject]["state"]) == ("open", "muted")
        assert admin.http("POST", path, body, headers={**FORM, **ana}).status == 200
        assert wrong(admin, **ana)[subject]["state"] == "muted"
        entries = admin.json("GET", "/api/v2/activity?kind=action", **ana).json["activity"]
        assert [(it["user"], it["result"]) for it in entries] == [
            ("ana", "ok"),
            ("ben", "ok"),
            ("carl", "refused"),
        ]
        entries = admin.json("GET", "/api/v2/activity?kind=action", **ben).json["activity"]
        assert [it["user"] for it in entries] == ["ben", "carl"]  # what concerns the topic that he sees


def test_read_only_says_why_not(cluster: Cluster) -> None:
    with Nsqadmin(*cluster.lookupd_options, *QUICK, PATIENT, "read-only") as admin:
        key = one(admin, "tenant_*.events/indexer")["key"]
        assert "nsqadmin is read-only (--read-only)" in page(admin, f"/incidents/{key}/mark")
        assert marked(admin, key, do="acknowledge") == 403
        assert wrong(admin)["tenant_*.events/indexer"]["state"] == "open"


def test_a_restart_keeps_the_begin_and_the_marks(cluster: Cluster, tmp_path: Path) -> None:
    with Nsqadmin(*cluster.lookupd_options, *QUICK, PATIENT, f"history-file={tmp_path / 'history'}") as admin:
        before = one(admin, "tenant_*.events/indexer")
        assert marked(admin, before["key"], do="acknowledge", note="on it") == 200
        admin.restart()
        after = one(admin, "tenant_*.events/indexer", state="acknowledged")
        assert after["began"] == before["began"]


def test_a_node_that_hangs_is_one_incident_and_said_once(admin: Nsqadmin, cluster: Cluster) -> None:
    node = cluster.nodes[0]
    before = set(wrong(admin))
    node.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: "node_down" in [it["what"] for it in one(admin, name_of(node), cause="node")["changes"]])
        # Not one for each of its channels. On a busy machine another process is slow for a moment, which is its own.
        others = {name_of(it) for it in (*cluster.nodes, *cluster.lookupds)}
        eventually(lambda: wrong(admin).keys() <= before | others)
        shown = page(admin, "/")
        assert shown.count("does not answer") == 1
    finally:
        node.send_signal(signal.SIGCONT)
    eventually(lambda: name_of(node) not in wrong(admin))
