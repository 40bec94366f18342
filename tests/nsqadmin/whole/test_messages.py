"""Messages in nsqadmin: history, peeking, tailing, publishing and replaying, on two real nsqd."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.nsqadmin.whole.test_api_v2 import QUICK, stream
from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.process import PATIENT, Nsqadmin, eventually, needs_module

needs_module("starlette")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as it:
        yield it


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Nsqadmin]:
    with Nsqadmin(*cluster.lookupd_options, *QUICK, PATIENT, "enable-publish") as it:
        yield it
        assert "Traceback" not in it.log


@pytest.fixture
def a_topic(cluster: Cluster, admin: Nsqadmin, topic: str) -> Iterator[str]:
    """Make a topic: m0 to m4 as JSON on the first node, m5 on the second; a channel c on both."""
    for node, numbers in zip(cluster.nodes, (range(5), range(5, 6)), strict=True):
        node.post(f"/topic/create?topic={topic}")
        node.post(f"/channel/create?topic={topic}&channel=c")
        for number in numbers:
            node.post(f"/pub?topic={topic}", json.dumps({"n": number, "secret": f"s{number}"}).encode())
    cluster.wait_for(topic)
    eventually(lambda: len(read(admin, topic, "from=earliest")) == 6)
    yield topic
    cluster.delete_topic(topic)


def read(admin: Nsqadmin, topic: str, query: str = "") -> list[Any]:
    answer = admin.json("GET", f"/api/v2/messages/{topic}?{query}")
    return [json.loads(it["body"])["n"] for it in answer.json["messages"]] if answer.status == 200 else []


def wait_for_both(admin: Nsqadmin, topic: str, user: str) -> None:
    """Wait until an nsqadmin that has just started knows the topic on both nodes. It starts without slow ones."""

    def nodes() -> list[Any]:
        found: list[Any] = admin.json("GET", f"/api/v2/topics/{topic}", X_Forwarded_User=user).json.get("nodes", [])
        return found

    eventually(lambda: len(nodes()) == 2)


def test_history_is_read_from_all_nodes_and_nothing_changes(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    before = cluster.nodes[0].stats(a_topic)["topics"]
    page = admin.json("GET", f"/api/v2/messages/{a_topic}?from=earliest").json
    assert [json.loads(it["body"])["n"] for it in page["messages"]] == list(range(6))
    assert {it["node"]: it["next"] for it in page["logs"]} == {
        name_of(cluster.nodes[0]): 5,
        name_of(cluster.nodes[1]): 1,
    }
    assert cluster.nodes[0].stats(a_topic)["topics"] == before


def test_by_sequence_by_time_and_from_the_end(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    first = name_of(cluster.nodes[0])
    assert read(admin, a_topic, f"node={first}&from=3") == [3, 4]
    assert read(admin, a_topic, f"node={first}&from=latest&limit=2") == [3, 4]
    assert read(admin, a_topic, "from=2020-01-01T00:00:00Z&limit=3") == [0, 1, 2]
    page = admin.json("GET", f"/api/v2/messages/{a_topic}?node={first}&from=1&limit=2").json
    assert page["logs"][0]["continue_at"] == 3


def test_with_a_filter(admin: Nsqadmin, a_topic: str) -> None:
    assert read(admin, a_topic, "from=earliest&filter=n%20%3E%3D%204") == [4, 5]
    assert read(admin, a_topic, "from=earliest&filter=S3") == [3]


def test_a_file_of_them(admin: Nsqadmin, a_topic: str) -> None:
    answer = admin.http("GET", f"/api/v2/messages/{a_topic}?from=earliest&format=ndjson")
    assert len(answer.body.splitlines()) == 6
    assert "attachment" in answer.headers["content-disposition"]


def test_peeking_shows_what_comes_next_and_takes_nothing(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    consumer = cluster.nodes[0].connect()
    consumer.subscribe(a_topic, "c", ready=1)
    consumer.finish(consumer.message())
    consumer.message()  # in flight from now on
    eventually(lambda: cluster.nodes[0].channel(a_topic)["depth"] == 3)

    def numbers() -> list[int]:
        return [json.loads(it["body"])["n"] for it in page()["messages"]]

    def page() -> Any:
        return admin.json("GET", f"/api/v2/messages/{a_topic}/c").json

    eventually(lambda: numbers() == [2, 3, 4, 5])  # the last one is shown when it is synced
    assert {it["attempts"] for it in page()["messages"]} == {0}
    assert cluster.nodes[0].channel(a_topic)["depth"] == 3


@pytest.mark.parametrize(
    ("method", "path", "document", "status", "message"),
    [
        ("GET", "/api/v2/messages/nosuch", None, 404, "TOPIC_NOT_FOUND"),
        ("GET", "/api/v2/messages/{topic}/nosuch", None, 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/api/v2/messages/{topic}?limit=0", None, 400, "INVALID_ARG_LIMIT"),
        ("GET", "/api/v2/messages/{topic}?node=evil:80", None, 404, "NODE_NOT_FOUND"),
        ("GET", "/api/v2/logs/{topic}?node=evil:80", None, 404, "NODE_NOT_FOUND"),
        ("GET", "/api/v2/messages/{topic}?filter=n%3D1%20or%20n%3D2", None, 400, "INVALID_ARG_FILTER"),
        ("POST", "/api/v2/publish", {"topic": "bad name", "body": "x"}, 400, "INVALID_TOPIC"),
        ("POST", "/api/v2/publish", {"topic": "{topic}", "body": ""}, 400, "INVALID_BODY"),
        ("POST", "/api/v2/publish", {"topic": "{topic}", "body": "x", "node": "evil:80"}, 404, "NODE_NOT_FOUND"),
        ("POST", "/api/v2/publish", {"topic": "{topic}", "body": "x", "defer_ms": -1}, 400, "INVALID_DEFER_MS"),
        ("POST", "/api/v2/publish", {"topic": "{topic}", "body": "x", "count": 100_000}, 400, "INVALID_COUNT"),
        ("POST", "/api/v2/publish", {"topic": "{topic}", "bodies": ["x"] * 9, "count": 9999}, 400, "INVALID_BODY"),
        ("POST", "/api/v2/replay", {"topic": "{topic}", "target": "t"}, 400, "INVALID_NODE"),
        ("POST", "/api/v2/replay", {"topic": "{topic}", "target": "t", "node": "evil:80"}, 404, "NODE_NOT_FOUND"),
    ],
)
def test_what_cannot_be_answered(
    admin: Nsqadmin, a_topic: str, method: str, path: str, document: Any, status: int, message: str
) -> None:
    if document is not None:
        document = {key: a_topic if value == "{topic}" else value for key, value in document.items()}
    answer = admin.json(method, path.replace("{topic}", a_topic), document)
    assert (answer.status, answer.json["message"]) == (status, message)


def test_a_place_that_is_none_is_told_for_each_node(admin: Nsqadmin, a_topic: str) -> None:
    page = admin.json("GET", f"/api/v2/messages/{a_topic}?from=yesterday").json
    assert page["messages"] == []
    assert all("that is not a place" in it["reason"] for it in page["logs"])


def test_publishing(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    second = name_of(cluster.nodes[1])
    document = {"topic": a_topic, "bodies": ['{"n":10}', '{"n":11}'], "node": second, "count": 2}
    assert admin.json("POST", "/api/v2/publish", document).json == {
        "node": second,
        "count": 4,
        "error": "",
        "original_error": "",
    }
    eventually(lambda: read(admin, a_topic, f"node={second}&from=1") == [10, 11, 10, 11])
    later = {"topic": a_topic, "body": '{"n":12}', "defer_ms": 60_000, "node": second}
    assert admin.json("POST", "/api/v2/publish", later).json["count"] == 1
    eventually(lambda: cluster.nodes[1].channel(a_topic)["deferred_count"] == 1)


def test_a_range_is_published_again_into_another_topic(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    first = name_of(cluster.nodes[0])
    target = f"{a_topic[:50]}-again"
    document = {"topic": a_topic, "node": first, "first": 1, "end": 4, "target": target}
    plan = admin.json("POST", "/api/v2/replay/plan", document).json
    assert (plan["count"], plan["title"]) == (3, f"Replay 3 messages of {a_topic} to {target}")
    assert cluster.nodes[0].topic(target) is None
    receipt = admin.json("POST", "/api/v2/replay", document).json
    assert (receipt["published"], receipt["error"], receipt["continue_at"]) == (3, "", None)
    eventually(lambda: read(admin, target, "from=earliest") == [1, 2, 3])
    newest = admin.json("GET", "/api/v2/activity?what=replay").json["activity"][0]
    assert (newest["topic"], newest["result"]) == (target, "ok")


def test_a_tail_shows_what_is_published_and_leaves_nothing_behind(
    admin: Nsqadmin, cluster: Cluster, a_topic: str
) -> None:
    with stream(admin, f"/api/v2/tail/{a_topic}?seconds=20") as events:
        eventually(lambda: all(len(node.topic(a_topic)["channels"]) == 2 for node in cluster.nodes))
        cluster.nodes[0].post(f"/pub?topic={a_topic}", b"<b>live</b>")
        name, data = next(events)
        assert (name, data["body"], data["node"]) == ("message", "<b>live</b>", name_of(cluster.nodes[0]))
    eventually(lambda: all(len(node.topic(a_topic)["channels"]) == 1 for node in cluster.nodes))
    assert cluster.nodes[0].channel(a_topic)["depth"] == 6


def test_a_tail_that_would_take_the_backlog_is_refused(admin: Nsqadmin, cluster: Cluster, topic: str) -> None:
    cluster.nodes[0].post(f"/pub?topic={topic}", b"waits")
    cluster.wait_for(topic, 1)
    eventually(lambda: admin.json("GET", f"/api/v2/topics/{topic}").status == 200)
    answer = admin.json("GET", f"/api/v2/tail/{topic}")
    assert (answer.status, answer.json["message"]) == (409, "CANNOT_TAIL")
    assert cluster.nodes[0].topic(topic)["channels"] == []
    assert cluster.nodes[0].topic(topic)["depth"] == 1


def test_who_has_no_right_to_bodies_sees_masks(cluster: Cluster, admin: Nsqadmin, a_topic: str, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text(
        '[[role]]\nname="v"\nusers=["viewer"]\ncan=["viewer"]\n[[role]]\nname="p"\nusers=["reader"]\ncan=["payload"]\n'
    )
    options = (*cluster.lookupd_options, *QUICK, PATIENT, f"roles-file={roles}", "enable-publish")
    path = f"/api/v2/messages/{a_topic}?from=earliest&limit=1"
    with Nsqadmin(*options, "mask=$.secret") as masking:
        wait_for_both(masking, a_topic, "viewer")
        (message,) = masking.json("GET", path, X_Forwarded_User="viewer").json["messages"]
        assert (json.loads(message["body"]), message["is_masked"]) == ({"n": 0, "secret": "***"}, True)
        found = masking.json("GET", f"{path}&filter=s0", X_Forwarded_User="viewer").json["messages"]
        assert found == []  # searching does not reveal masked values either
        (message,) = masking.json("GET", path, X_Forwarded_User="reader").json["messages"]
        assert json.loads(message["body"])["secret"] == "s0"
        assert masking.json("GET", path).status == 403
        assert masking.json("GET", f"/api/v2/tail/{a_topic}", X_Forwarded_User="viewer").status == 403
        publish = {"topic": a_topic, "body": "x"}
        assert masking.json("POST", "/api/v2/publish", publish, X_Forwarded_User="reader").status == 403
    with Nsqadmin(*options) as withholding:
        wait_for_both(withholding, a_topic, "viewer")
        (message,) = withholding.json("GET", path, X_Forwarded_User="viewer").json["messages"]
        assert "body" not in message
        assert message["body_withheld"]


def test_publishing_has_to_be_enabled(cluster: Cluster, a_topic: str) -> None:
    with Nsqadmin(*cluster.lookupd_options) as closed:
        answer = closed.json("POST", "/api/v2/publish", {"topic": a_topic, "body": "x"})
        assert (answer.status, answer.json["reason"]) == (403, "publishing is not enabled (--enable-publish)")


def made_anew(admin: Nsqadmin, cluster: Cluster, topic: str) -> None:
    """Delete the topic on all nodes, and make it again with other messages at the same sequences, all finished."""
    for daemon in (*cluster.nodes, *cluster.lookupds):
        daemon.http("POST", f"/topic/delete?topic={topic}")
    node = cluster.nodes[0]
    node.post(f"/topic/create?topic={topic}")
    node.post(f"/channel/create?topic={topic}&channel=c")
    for number in range(100, 105):
        node.post(f"/pub?topic={topic}", json.dumps({"n": number}).encode())
    eventually(lambda: read(admin, topic, "from=earliest") == list(range(100, 105)))
    node.post(f"/channel/empty?topic={topic}&channel=c")


def form(answer: str, name: str) -> list[str]:
    return [unescape(value) for value in re.findall(rf'name="{name}" value="([^"]*)"', answer)]


@pytest.mark.parametrize("to", ["channel:c", "all"])
def test_rows_of_a_topic_that_was_made_anew_since_are_no_other_messages(
    admin: Nsqadmin, cluster: Cluster, a_topic: str, to: str
) -> None:
    page = admin.http("GET", f"/topics/{a_topic}?tab=messages").body.decode()
    picks = [pick for pick in form(page, "pick") if name_of(cluster.nodes[0]) in pick]
    assert len(picks) == 5
    made_anew(admin, cluster, a_topic)
    plan = admin.http(
        "POST", "/actions/redeliver", urlencode([("topic", a_topic), *(("pick", it) for it in picks)]).encode()
    )
    (chosen,) = form(plan.body.decode(), "messages")
    wanted = urlencode({"topic": a_topic, "messages": chosen, "to": to}).encode()
    # 404 as long as the last sample is one from between the deletion and the creation.
    receipt = eventually(lambda: (it := admin.http("POST", "/actions/redeliver", wanted)).status != 404 and it)
    assert "the topic has been deleted and created again there: these messages are gone" in receipt.body.decode()
    assert "Nothing was replayed" in receipt.body.decode()
    assert cluster.nodes[0].channel(a_topic)["depth"] == 0


def test_the_page_of_a_message_is_about_that_message_or_none(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    page = admin.http("GET", f"/topics/{a_topic}?tab=messages").body.decode()
    link = next(it for it in map(unescape, re.findall(r'href="(/message\?[^"]*)"', page)) if "sequence=3" in it)
    assert "s3" in admin.http("GET", link).body.decode()
    made_anew(admin, cluster, a_topic)
    answer = admin.http("GET", link)
    assert answer.status == 404
    assert "the topic has been deleted and created again there" in answer.body.decode()


def test_a_range_that_was_planned_is_not_published_from_another_log(
    admin: Nsqadmin, cluster: Cluster, a_topic: str
) -> None:
    node = name_of(cluster.nodes[0])
    asked = {"topic": a_topic, "node": node, "first": "0", "end": "4", "target": f"{a_topic[:50]}.again"}
    plan = admin.http("GET", f"/actions/replay?{urlencode(asked)}").body.decode()
    (log,) = form(plan, "log")
    made_anew(admin, cluster, a_topic)

    def answer() -> Any:  # None: nsqadmin has asked the nodes before the topic was made anew
        answer = admin.http("POST", "/actions/replay", urlencode({**asked, "log": log}).encode())
        return answer if answer.status != 404 else None

    refused = eventually(answer)
    assert (refused.status, "deleted and created again there" in refused.body.decode()) == (409, True)
    assert cluster.nodes[0].topic(f"{a_topic[:50]}.again") is None


def test_headers_are_shown_and_found(admin: Nsqadmin, cluster: Cluster, a_topic: str, tmp_path: Path) -> None:
    """Names are harmless by their grammar; values may be anything."""
    node = cluster.nodes[0]
    long = "v" * 1000
    headers = {"Nsq-Header-who": "<b>ana</b>", "Nsq-Header-long": long, "traceparent": "00-0af7-01"}
    assert node.http("POST", f"/pub?topic={a_topic}", b'{"n": 6}', headers=headers).status == 200
    eventually(lambda: len(read(admin, a_topic, "from=earliest")) == 7)
    query = urlencode({"from": "earliest", "filter": "header.traceparent ~ 0AF7 and n = 6"})
    (found,) = admin.json("GET", f"/api/v2/messages/{a_topic}?{query}").json["messages"]
    assert found["headers"] == {"who": "<b>ana</b>", "long": long, "traceparent": "00-0af7-01"}
    assert read(admin, a_topic, "from=earliest&" + urlencode({"filter": "header.who = nobody"})) == []
    place = {"topic": a_topic, "node": found["node"], "sequence": found["sequence"]}
    page = admin.http("GET", f"/message?{urlencode(place)}").body.decode()
    assert "<b>ana</b>" not in page
    assert all(text in unescape(page) for text in ("traceparent", "00-0af7-01", "<b>ana</b>", long))
    plain = admin.http("GET", f"/message?{urlencode(place | {'sequence': 0})}").body.decode()
    assert "Headers of message" not in plain
    roles = tmp_path / "roles.toml"
    roles.write_text('[[role]]\nname="v"\nusers=["viewer"]\ncan=["viewer"]\n')
    who = {"X-Forwarded-User": "viewer"}
    with Nsqadmin(*cluster.lookupd_options, *QUICK, PATIENT, f"roles-file={roles}", "mask=$.secret") as limited:
        wait_for_both(limited, a_topic, "viewer")
        page = limited.http("GET", f"/message?{urlencode(place)}", headers=who).body.decode()
        assert "Published" in page
        assert "0af7" not in page
        found = limited.http("GET", f"/api/v2/messages/{a_topic}?{query}", headers=who)
        assert (found.status, found.json["messages"]) == (200, [])
