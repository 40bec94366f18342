"""nsqadmin's own API: the snapshot, plans and receipts, live numbers, metrics, login, the snapshot file."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import TIMEOUT
from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")


QUICK = ("sample-interval=200ms", "discovery-interval=200ms")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as it:
        yield it


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Nsqadmin]:
    with Nsqadmin(*cluster.lookupd_options, *QUICK) as it:
        yield it
        assert "Traceback" not in it.log


@pytest.fixture
def a_topic(cluster: Cluster, admin: Nsqadmin, topic: str) -> Iterator[str]:
    """Make a topic on both nodes, with a channel c and no consumer: two messages on each node."""
    for node in cluster.nodes:
        node.post(f"/topic/create?topic={topic}")
        node.post(f"/channel/create?topic={topic}&channel=c")
        node.post(f"/mpub?topic={topic}", b"one\ntwo")
    cluster.wait_for(topic)
    eventually(lambda: depth_of(admin, topic) == 4)
    yield topic
    cluster.delete_topic(topic)


def depth_of(admin: Nsqadmin, topic: str) -> int | None:
    answer = admin.json("GET", f"/api/v2/topics/{topic}/c")
    return answer.json["depth"] if answer.status == 200 else None


def rules(admin: Nsqadmin, path: str = "") -> set[str]:
    return {it["rule"] for it in admin.json("GET", f"/api/v2/diagnose{path}").json["findings"]}


# Looking


def test_the_picture_of_a_channel(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    channel = admin.json("GET", f"/api/v2/topics/{a_topic}/c").json
    assert {row["node"]: row["depth"] for row in channel["nodes"]} == {name_of(it): 2 for it in cluster.nodes}
    assert channel["paused"] == "no"
    health = admin.json("GET", "/api/v2/health").json
    assert health["problems"] >= 1
    incidents = admin.json("GET", "/api/v2/incidents").json["incidents"]
    assert health["problems"] <= len(incidents), "findings with one cause count once"
    assert health["totals"]["depth"] >= 4
    nodes = admin.json("GET", "/api/v2/nodes").json["nodes"]
    assert all(it["health"] == "ok" and it["has_history"] and len(it["lookupds"]) == 2 for it in nodes)


def test_fresh_asks_the_nodes_first(cluster: Cluster, a_topic: str) -> None:
    with Nsqadmin(*cluster.lookupd_options, "sample-interval=1h") as admin:
        fresh = f"/api/v2/topics/{a_topic}/c?fresh=1"
        assert admin.json("GET", fresh).json["depth"] == 4
        cluster.nodes[0].post(f"/pub?topic={a_topic}", b"x")
        assert depth_of(admin, a_topic) == 4
        assert admin.json("GET", fresh).json["depth"] == 5


def test_a_channel_without_consumers_is_diagnosed(admin: Nsqadmin, a_topic: str) -> None:
    (finding,) = admin.json("GET", f"/api/v2/diagnose/{a_topic}/c").json["findings"]
    assert (finding["rule"], finding["severity"]) == ("D3", "problem")
    assert {"label": "waiting", "value": "4"} in finding["evidence"]


def test_how_its_numbers_went(admin: Nsqadmin, a_topic: str) -> None:
    series = admin.json("GET", f"/api/v2/series?key=channel:{a_topic}/c&span=12m").json
    assert series["values"]["depth"][-1] == 4.0
    assert admin.json("GET", "/api/v2/series").json["key"] == "cluster"


@pytest.mark.parametrize(
    ("method", "path", "document", "status", "message"),
    [
        ("GET", "/api/v2/topics/nosuch", None, 404, "TOPIC_NOT_FOUND"),
        ("GET", "/api/v2/diagnose/nosuch", None, 404, "TOPIC_NOT_FOUND"),
        ("GET", "/api/v2/series?span=1y", None, 400, "INVALID_ARG_SPAN"),
        ("GET", "/api/v2/series?key=topic:nosuch", None, 404, "SERIES_NOT_FOUND"),
        ("GET", "/api/v2/activity?limit=0", None, 400, "INVALID_ARG_LIMIT"),
        ("GET", "/api/v2/activity?limit=x", None, 400, "INVALID_ARG_LIMIT"),
        ("GET", "/events?scope=everything", None, 400, "INVALID_ARG_SCOPE"),
        ("POST", "/api/v2/actions", None, 400, "INVALID_BODY"),
        ("POST", "/api/v2/actions", [], 400, "INVALID_BODY"),
        ("POST", "/api/v2/actions", {"kind": "explode"}, 400, "INVALID_ACTION"),
        ("POST", "/api/v2/actions", {"kind": "pause_topic"}, 400, "INVALID_TOPIC"),
        ("POST", "/api/v2/actions", {"kind": "pause_topic", "topic": 3}, 400, "INVALID_BODY"),
        ("POST", "/api/v2/actions", {"kind": "pause_topic", "topic": "t", "nodes": ["evil:80"]}, 404, "NODE_NOT_FOUND"),
        ("POST", "/api/v2/plan", {"kind": "pause_topic", "topic": "nosuch"}, 404, "TOPIC_NOT_FOUND"),
    ],
)
def test_what_cannot_be_answered(
    admin: Nsqadmin, method: str, path: str, document: Any, status: int, message: str
) -> None:
    answer = admin.json(method, path, document)
    assert (answer.status, answer.json["message"]) == (status, message)


# Doing


def test_a_plan_says_what_would_be_lost_and_a_receipt_what_was_done(
    admin: Nsqadmin, cluster: Cluster, a_topic: str
) -> None:
    action = {"kind": "empty_channel", "topic": a_topic, "channel": "c"}
    plan = admin.json("POST", "/api/v2/plan", action).json
    assert plan["title"] == f"Empty channel {a_topic}/c (4 messages on 2 nodes)"
    assert depth_of(admin, a_topic) == 4
    receipt = admin.json("POST", "/api/v2/actions", action).json
    assert receipt["result"] == "ok"
    assert {it["address"] for it in receipt["steps"]} == {name_of(it) for it in cluster.nodes}
    assert not any(node.channel(a_topic)["depth"] for node in cluster.nodes)
    newest = admin.json("GET", "/api/v2/activity?kind=action").json["activity"][0]
    assert (newest["what"], newest["topic"], newest["result"]) == ("empty_channel", a_topic, "ok")


def test_a_pause_on_one_node_is_found_and_can_be_finished(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    first = name_of(cluster.nodes[0])
    action = {"kind": "pause_channel", "topic": a_topic, "channel": "c"}
    assert admin.json("POST", "/api/v2/actions", {**action, "nodes": [first]}).json["result"] == "ok"
    eventually(lambda: rules(admin, f"/{a_topic}/c") == {"D2"})
    assert admin.json("POST", "/api/v2/actions", action).json["result"] == "ok"
    eventually(lambda: rules(admin, f"/{a_topic}/c") == {"D1"})


def test_a_channel_is_moved_back_into_its_history(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    empty = {"kind": "empty_channel", "topic": a_topic, "channel": "c"}
    admin.json("POST", "/api/v2/actions", empty)
    move = {"kind": "seek_channel", "topic": a_topic, "channel": "c", "place": "earliest"}
    receipt = admin.json("POST", "/api/v2/actions", move).json
    assert receipt["steps"], receipt


def test_a_topic_is_made_on_the_nodes_that_are_chosen(admin: Nsqadmin, cluster: Cluster, topic: str) -> None:
    first = name_of(cluster.nodes[0])
    action = {"kind": "create_topic", "topic": topic, "nodes": [first]}
    assert admin.json("POST", "/api/v2/actions", action).json["result"] == "ok"
    assert cluster.nodes[0].topic(topic) is not None
    assert cluster.nodes[1].topic(topic) is None


def test_a_node_that_dies_meanwhile_is_in_the_receipt(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster, Nsqadmin(*cluster.lookupd_options, *QUICK) as admin:
        for node in cluster.nodes:
            node.post("/topic/create?topic=t")
        cluster.wait_for("t")
        victim = name_of(cluster.nodes[1])
        # The node hangs: it is registered and accepts connections, but answers nothing.
        cluster.nodes[1].send_signal(signal.SIGSTOP)
        try:
            receipt = admin.json("POST", "/api/v2/actions", {"kind": "pause_topic", "topic": "t"}).json
            assert receipt["result"] == "partly"
            assert [it["address"] for it in receipt["steps"] if it["error"]] == [victim]
            assert receipt["took"] < 15
            # Meanwhile the numbers of the other node are updated, and the silent node is named.
            eventually(lambda: victim in admin.json("GET", "/api/v2/health").json["verdict"] or rules(admin) & {"D16"})
            before = admin.json("GET", "/api/v2/health").json["index"]
            eventually(lambda: admin.json("GET", "/api/v2/health").json["index"] > before + 1)
        finally:
            cluster.nodes[1].send_signal(signal.SIGCONT)


def test_who_was_killed_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster, Nsqadmin(*cluster.lookupd_options, *QUICK) as admin:
        for node in cluster.nodes:
            node.post("/topic/create?topic=t")
        cluster.wait_for("t")

        def nodes() -> set[str]:
            return {it["node"] for it in admin.json("GET", "/api/v2/topics/t").json.get("nodes", ())}

        eventually(lambda: nodes() == set(map(name_of, cluster.nodes)))  # both have been asked
        cluster.nodes[1].kill()
        cluster.lookupds[1].kill()
        gone = {name_of(cluster.nodes[1]), f"127.0.0.1:{cluster.lookupds[1].http_address[1]}"}

        def unanswered() -> set[str]:
            return {it["where"] for it in admin.json("GET", "/api/v2/health").json["unanswered"]}

        eventually(lambda: unanswered() == gone)
        topic = admin.json("GET", "/api/v2/topics/t").json
        assert nodes() == set(map(name_of, cluster.nodes))
        assert topic["silent"] == [name_of(cluster.nodes[1])]
        happened = {it["what"] for it in admin.json("GET", "/api/v2/activity").json["activity"]}
        assert happened >= {"node_down", "lookupd_down"}


# Live


@contextmanager
def stream(admin: Nsqadmin, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """Yield the events of a stream, as they come."""
    connection = http.client.HTTPConnection(*admin.http_address, timeout=TIMEOUT)
    connection.request("GET", path)
    response = connection.getresponse()
    try:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")

        def events() -> Iterator[tuple[str, Any]]:
            name = ""
            for line in response:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    name = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    yield name, json.loads(text.removeprefix("data: "))

        yield events()
    finally:
        response.close()
        connection.close()


def test_live_numbers_come_whole_first_and_then_as_differences(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    key = f"topics/{a_topic}/c/depth"
    with stream(admin, f"/events?scope=channel:{a_topic}/c") as events:
        names = [next(events)[0]]
        name, first = next(events)
        assert (names, name) == (["health"], "cells")
        assert first["set"][key] == 4
        cluster.nodes[0].post(f"/pub?topic={a_topic}", b"three")
        for name, data in events:
            if name == "cells" and key in data["set"]:
                assert data["set"][key] == 5
                assert len(data["set"]) < len(first["set"])
                break
    cells = admin.json("GET", f"/api/v2/cells?scope=topics&only={a_topic}").json
    topics = {it.split("/")[1] for it in cells["set"] if it.startswith("topics/")}
    assert topics == {a_topic}


def test_what_somebody_does_is_told_live(admin: Nsqadmin, a_topic: str) -> None:
    with stream(admin, "/events?scope=overview") as events:
        next(events)
        admin.json("POST", "/api/v2/actions", {"kind": "pause_topic", "topic": a_topic})
        data = next(data for name, data in events if name == "activity" and data["topic"] == a_topic)
        assert data["what"] in ("pause_topic", "paused")


def test_who_has_left_is_not_counted_any_more(admin: Nsqadmin) -> None:
    def viewers() -> str:
        return next(
            it for it in admin.http("GET", "/metrics").body.decode().splitlines() if it.startswith("nsqadmin_viewers")
        )

    eventually(lambda: viewers() == "nsqadmin_viewers 0")  # those of other tests have left
    with stream(admin, "/events?scope=nodes") as events:
        next(events)
        assert viewers() == "nsqadmin_viewers 1"
    eventually(lambda: viewers() == "nsqadmin_viewers 0")


def test_it_stops_at_once_although_somebody_looks(cluster: Cluster) -> None:
    with Nsqadmin(*cluster.lookupd_options, *QUICK) as admin, stream(admin, "/events") as events:
        next(events)
        assert admin.stop() == 0
        admin.start()


def test_more_viewers_than_there_may_be_are_told_when_to_come_again(cluster: Cluster) -> None:
    # A sample would be sent to each of them.
    with Nsqadmin(*cluster.lookupd_options, "sample-interval=1h") as admin, ExitStack() as viewers:
        for _ in range(199):
            viewers.enter_context(stream(admin, "/events?scope=nodes"))
        with stream(admin, "/events?scope=overview") as events:
            next(events)
            refused = admin.http("GET", "/events?scope=topics")
            assert (refused.status, refused.json) == (503, {"message": "TOO_MANY_VIEWERS"})
            assert refused.headers["retry-after"] == "30"
            assert admin.http("GET", "/topics").status == 200
        last = b"nsqadmin_viewers 199\n"
        eventually(lambda: last in admin.http("GET", "/metrics").body)
        with stream(admin, "/events?scope=topics") as events:
            next(events)


# Monitoring


def test_metrics(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    text = admin.http("GET", "/metrics").body.decode()
    assert f'nsq_channel_depth{{topic="{a_topic}",channel="c"}} 4' in text
    assert f'nsq_channel_condition{{rule="D3",topic="{a_topic}",channel="c",severity="problem"}} 1' in text
    assert f'nsq_node_up{{node="{name_of(cluster.nodes[0])}",kind="nsqd"}} 1' in text
    assert admin.http("GET", "/healthz").body == b"OK"


# Who


def test_a_login_is_asked_for_where_there_is_a_file_of_users(cluster: Cluster, tmp_path: Path, a_topic: str) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "nsqadmin.accounts", "ana"], input="s3cret\n", capture_output=True, text=True, check=True
    )
    users, roles = tmp_path / "users", tmp_path / "roles.toml"
    users.write_text(made.stdout)
    roles.write_text('[[role]]\nname="ops"\nusers=["ana"]\ncan=["operator"]\n')
    with Nsqadmin(*cluster.lookupd_options, f"auth-file={users}", f"roles-file={roles}") as admin:
        asked = admin.json("GET", "/api/topics")
        assert asked.status == 401
        assert asked.headers["www-authenticate"].startswith("Basic ")
        assert admin.json("GET", "/api/topics", authorization=basic("ana", "wrong")).status == 401
        assert admin.json("GET", "/api/topics", X_Forwarded_User="ana").status == 401
        assert admin.http("GET", "/ping").status == 200
        ana = basic("ana", "s3cret")
        assert a_topic in admin.json("GET", "/api/topics", authorization=ana).json["topics"]
        me = admin.json("GET", "/api/v2/me", authorization=ana).json
        assert (me["user"], me["rights"]["operator"], me["open"]) == ("ana", True, False)
        assert "right 'admin'" in me["rights"]["admin"]
        delete = {"kind": "delete_topic", "topic": a_topic}
        assert admin.json("POST", "/api/v2/actions", delete, authorization=ana).status == 403


def test_headers_about_the_user_count_only_from_trusted_proxies(cluster: Cluster) -> None:
    with Nsqadmin(*cluster.lookupd_options, "admin-user=ana", "trusted-proxy=10.0.0.0/8") as admin:
        assert admin.json("POST", "/api/topics", {"topic": "x"}, X_Forwarded_User="ana").status == 403
    with Nsqadmin(*cluster.lookupd_options, "admin-user=ana", "trusted-proxy=127.0.0.0/8") as admin:
        assert admin.json("POST", "/api/topics", {"topic": "x"}, X_Forwarded_User="ana").status == 200


def basic(user: str, password: str) -> str:
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


# The snapshot file


def test_a_saved_snapshot_is_shown_without_a_cluster(admin: Nsqadmin, a_topic: str, tmp_path: Path) -> None:
    saved = tmp_path / "snapshot.json"
    saved.write_bytes(admin.http("GET", "/api/v2/snapshot").body)
    with Nsqadmin(f"snapshot={saved}") as shown:
        assert depth_of(shown, a_topic) == 4
        assert rules(shown, f"/{a_topic}/c") == {"D3"}
        assert shown.json("GET", f"/api/v2/series?key=channel:{a_topic}/c").json["values"]["depth"][-1] == 4.0
        refused = shown.json("POST", "/api/v2/actions", {"kind": "pause_topic", "topic": a_topic})
        assert (refused.status, refused.json["reason"]) == (403, "this is a snapshot: nothing can be changed")
        with stream(shown, f"/events?scope=topic:{a_topic}") as events:
            assert next(events)[0] == "health"


# Who did it


def test_a_node_notes_the_user_of_nsqadmin(cluster: Cluster, admin: Nsqadmin, a_topic: str) -> None:
    action = {"kind": "pause_channel", "topic": a_topic, "channel": "c"}
    admin.json("POST", "/api/v2/actions", action, X_Forwarded_User="Ana M\xfcller <ana@example>")
    for node in cluster.nodes:
        (change,) = (it for it in changes(node, a_topic) if it["what"] == "pause_channel")
        assert (change["user"], change["user_agent"]) == ("Ana M\xfcller <ana@example>", "nsqadmin")


def changes(node: Nsqd, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.http("GET", f"/changes?topic={topic}").json["changes"]
    return found


def activity(admin: Nsqadmin, topic: str) -> list[tuple[str, str, str, bool]]:
    entries = admin.json("GET", f"/api/v2/activity?topic={topic}").json["activity"]
    return [(it["what"], it["channel"], it["user"], it["is_outside"]) for it in entries]


def page(admin: Nsqadmin, path: str) -> str:
    html = admin.http("GET", path).body.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", html))


def swept(admin: Nsqadmin, times: int = 2) -> None:
    """Wait until the sampler has looked at everything again."""
    index = admin.json("GET", "/api/v2/health").json["index"]
    eventually(lambda: admin.json("GET", "/api/v2/health").json["index"] >= index + times)


def test_an_action_and_what_comes_of_it_are_one_entry(admin: Nsqadmin, a_topic: str) -> None:
    ana = {"X_Forwarded_User": "ana"}
    for kind in ("pause_channel", "unpause_channel", "empty_channel", "delete_channel"):
        action = {"kind": kind, "topic": a_topic, "channel": "c"}
        assert admin.json("POST", "/api/v2/actions", action, **ana).status == 200
        swept(admin)
    assert admin.json("POST", "/api/v2/actions", {"kind": "delete_topic", "topic": a_topic}, **ana).status == 200
    eventually(lambda: admin.json("GET", f"/api/v2/topics/{a_topic}").status == 404)
    swept(admin)
    entries = [it for it in activity(admin, a_topic) if not it[0].endswith("_appeared")]
    assert [what for what, *_ in entries] == [
        "delete_topic",
        "delete_channel",
        "empty_channel",
        "unpause_channel",
        "pause_channel",
    ]
    texts = [it["text"] for it in admin.json("GET", f"/api/v2/activity?topic={a_topic}").json["activity"]]
    assert f"emptied channel {a_topic}/c of 4 messages" in texts
    assert f"deleted channel {a_topic}/c with 0 messages" in texts


def test_who_paused_a_channel_here_is_on_its_page(admin: Nsqadmin, a_topic: str) -> None:
    action = {"kind": "pause_channel", "topic": a_topic, "channel": "c"}
    admin.json("POST", "/api/v2/actions", action, X_Forwarded_User="ana")
    eventually(lambda: re.search(r"Paused \d\d:\d\d:\d\d UTC by ana ", page(admin, f"/topics/{a_topic}/c")))
    assert f"/activity?filter={a_topic}%2Fc" in admin.http("GET", f"/topics/{a_topic}/c").body.decode()
    action["kind"] = "unpause_channel"
    admin.json("POST", "/api/v2/actions", action)
    eventually(lambda: "by ana" not in page(admin, f"/topics/{a_topic}/c"))


def test_a_pause_by_curl_is_outside_nsqadmin(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    for node in cluster.nodes:
        node.post(f"/topic/pause?topic={a_topic}")
    eventually(lambda: re.search(r"Paused \d\d:\d\d:\d\d UTC outside nsqadmin", page(admin, f"/topics/{a_topic}")))
    eventually(lambda: ("paused", "", "", True) in activity(admin, a_topic))
    assert "by itself" not in page(admin, "/activity")
    (entry, *_) = admin.json("GET", f"/api/v2/activity?topic={a_topic}&what=paused").json["activity"]
    assert entry["remote"].startswith("127.0.0.1:")


def test_what_was_paused_at_the_first_look_is_from_before(cluster: Cluster, a_topic: str) -> None:
    cluster.nodes[0].post(f"/channel/pause?topic={a_topic}&channel=c")
    with Nsqadmin(*cluster.lookupd_options, *QUICK) as later:
        eventually(lambda: re.search(r"Paused before \d\d:\d\d:\d\d UTC ", page(later, f"/topics/{a_topic}/c")))
        assert activity(later, a_topic) == []


def test_a_pause_by_curl_has_its_holders_name(tmp_path: Path) -> None:
    rights, token = tmp_path / "rights.toml", tmp_path / "token"
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("on call", "admin")}
    rights.write_text(
        "".join(
            f'[[allow]]\nname = "{name}"\ntoken_sha256 = "{digest}"\nroles = ["admin"]\n'
            for name, digest in digests.items()
        )
    )
    token.write_text("admin")
    with Nsqd(tmp_path / "n", "broadcast-address=127.0.0.1", f"rights-file={rights}") as node:
        oncall = {"Authorization": "Bearer on call"}
        node.http("POST", "/topic/create?topic=t", headers=oncall)
        node.http("POST", "/channel/create?topic=t&channel=c", headers=oncall)
        with Nsqadmin(f"nsqd-http-address={name_of(node)}", f"nsqd-token-file={token}", *QUICK) as admin:
            eventually(lambda: admin.json("GET", "/api/v2/topics/t/c").status == 200)
            assert node.http("POST", "/channel/pause?topic=t&channel=c", headers=oncall).status == 200
            eventually(lambda: "UTC by on call, outside nsqadmin" in page(admin, "/topics/t/c"))
            eventually(lambda: ("paused", "c", "on call", True) in activity(admin, "t"))
            assert node.http("POST", "/channel/delete?topic=t&channel=c", headers=oncall).status == 200
            eventually(lambda: ("channel_vanished", "c", "on call", True) in activity(admin, "t"))
