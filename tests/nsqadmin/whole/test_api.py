"""NSQ's API on nsqadmin, with two nsqd and two nsqlookupd: shapes, warnings, actions, notifications, rights."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqlookupd, eventually, needs_module

needs_module("starlette")


TOPIC_KEYS = [
    "node",
    "hostname",
    "topic_name",
    "depth",
    "memory_depth",
    "backend_depth",
    "message_count",
    "delivery_msg_count",
    "nodes",
    "channels",
    "paused",
    "e2e_processing_latency",
]
CHANNEL_KEYS = [
    "node",
    "hostname",
    "topic_name",
    "channel_name",
    "depth",
    "memory_depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
    "nodes",
    "clients",
    "paused",
    "e2e_processing_latency",
]
CLIENT_KEYS = [
    "node",
    "remote_address",
    "version",
    "client_id",
    "hostname",
    "user_agent",
    "connect_ts",
    "connected",
    "in_flight_count",
    "ready_count",
    "finish_count",
    "requeue_count",
    "message_count",
    "sample_rate",
    "deflate",
    "snappy",
    "authed",
    "auth_identity",
    "auth_identity_url",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]
NODE_KEYS = [
    "remote_addresses",
    "remote_address",
    "hostname",
    "broadcast_address",
    "tcp_port",
    "http_port",
    "version",
    "topics",
    "out_of_date",
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as it:
        yield it


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Nsqadmin]:
    with Nsqadmin(*cluster.lookupd_options, PATIENT) as it:
        yield it
        assert "Traceback" not in it.log


@pytest.fixture
def a_topic(cluster: Cluster, topic: str) -> Iterator[str]:
    """Make a topic on both nodes, with a channel c: two messages on the first node, one on the second."""
    for node in cluster.nodes:
        node.post(f"/topic/create?topic={topic}")
        node.post(f"/channel/create?topic={topic}&channel=c")
    for node in (cluster.nodes[0], *cluster.nodes):
        node.post(f"/pub?topic={topic}", b"message")
    cluster.wait_for(topic)
    yield topic
    cluster.delete_topic(topic)


# Reading


def test_topics(admin: Nsqadmin, a_topic: str) -> None:
    answer = admin.json("GET", "/api/topics")
    assert answer.status == 200
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert list(answer.json) == ["topics", "message"]
    assert a_topic in answer.json["topics"]
    assert answer.json["topics"] == sorted(answer.json["topics"])
    assert answer.json["message"] == ""


def test_a_topic_with_its_sums_and_each_nodes_own_numbers(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    document = admin.json("GET", f"/api/topics/{a_topic}").json
    assert list(document) == [*TOPIC_KEYS, "message"]
    assert (document["node"], document["hostname"], document["topic_name"]) == ("*", "", a_topic)
    assert document["message_count"] == 3
    assert document["e2e_processing_latency"] == {
        "count": 0,
        "percentiles": None,
        "topic": a_topic,
        "channel": "",
        "host": "*",
    }
    assert [list(it) for it in document["nodes"]] == [TOPIC_KEYS, TOPIC_KEYS]
    assert {it["node"]: it["message_count"] for it in document["nodes"]} == {
        name_of(cluster.nodes[0]): 2,
        name_of(cluster.nodes[1]): 1,
    }
    (channel,) = document["channels"]
    assert list(channel) == CHANNEL_KEYS
    assert (channel["node"], channel["depth"]) == ("*", 3)
    assert sorted(it["channels"][0]["depth"] for it in document["nodes"]) == [1, 2]


def test_a_channel_with_its_clients(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    consumer = cluster.nodes[0].connect()
    consumer.identify(client_id="reader", hostname="reader-host", user_agent="test/1")
    consumer.subscribe(a_topic, "c")
    eventually(lambda: cluster.nodes[0].channel(a_topic)["client_count"] == 1)
    document = admin.json("GET", f"/api/topics/{a_topic}/c").json
    assert list(document) == [*CHANNEL_KEYS, "message"]
    assert document["depth"] == 3
    assert document["client_count"] == 1
    (client,) = document["clients"]
    assert list(client) == CLIENT_KEYS
    assert (client["client_id"], client["user_agent"]) == ("reader", "test/1")
    assert client["connected"] >= 0
    assert {it["node"]: len(it["clients"]) for it in document["nodes"]} == {
        name_of(cluster.nodes[0]): 1,
        name_of(cluster.nodes[1]): 0,
    }
    assert all(it["nodes"] is None for it in document["nodes"])


def test_nodes(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    document = admin.json("GET", "/api/nodes").json
    assert list(document) == ["nodes", "message"]
    assert [list(it) for it in document["nodes"]] == [NODE_KEYS, NODE_KEYS]
    for node in document["nodes"]:
        assert {"topic": a_topic, "tombstoned": False} in node["topics"]
        sources = {it.partition("/")[0] for it in node["remote_addresses"]}
        assert sources == {f"127.0.0.1:{it.http_address[1]}" for it in cluster.lookupds}
        assert node["out_of_date"] is False


def test_a_node(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    document = admin.json("GET", f"/api/nodes/{name_of(cluster.nodes[0])}").json
    assert list(document) == ["node", "topics", "total_messages", "total_clients", "message"]
    (found,) = [it for it in document["topics"] if it["topic_name"] == a_topic]
    assert list(found) == TOPIC_KEYS
    assert found["channels"][0]["channel_name"] == "c"
    assert document["total_messages"] >= 2


def test_counter(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    document = admin.json("GET", "/api/counter").json
    assert list(document) == ["stats", "message"]
    assert document["stats"][f"{a_topic}:c:{name_of(cluster.nodes[0])}"] == {
        "node": name_of(cluster.nodes[0]),
        "topic_name": a_topic,
        "channel_name": "c",
        "message_count": 2,
    }


def test_inactive_topics(admin: Nsqadmin, cluster: Cluster, topic: str) -> None:
    cluster.lookupds[0].post(f"/channel/create?topic={topic}&channel=old")
    cluster.lookupds[1].post(f"/topic/create?topic={topic}-bare")
    document = admin.json("GET", "/api/topics?inactive=true").json
    assert document["topics"][topic] == ["old"]
    assert document["topics"][f"{topic}-bare"] == []


@pytest.mark.parametrize(
    ("method", "path", "document", "status", "message"),
    [
        ("GET", "/api/nodes/nosuch:1", None, 404, "NODE_NOT_FOUND"),
        ("POST", "/api/topics", {"topic": ""}, 400, "INVALID_TOPIC"),
        ("POST", "/api/topics", {"topic": "a", "channel": "b b"}, 400, "INVALID_CHANNEL"),
        ("POST", "/api/topics", None, 400, "EOF"),
        ("POST", "/api/topics/x", {"action": "create"}, 400, "INVALID_ACTION"),
        ("POST", "/api/topics/x/y", {}, 400, "INVALID_ACTION"),
        ("DELETE", "/api/nodes/h:1", None, 400, "INVALID_BODY"),
        ("DELETE", "/api/nodes/h:1", {"topic": "bad!"}, 400, "INVALID_TOPIC"),
        ("DELETE", "/api/nodes/169.254.169.254:80", {"topic": "t"}, 404, "NODE_NOT_FOUND"),
        ("GET", "/api/graphite", None, 400, "INVALID_ARG_METRIC"),
        ("GET", "/api/graphite?metric=rate", None, 400, "INVALID_ARG_TARGET"),
        ("GET", "/api/nope", None, 404, "NOT_FOUND"),
    ],
)
def test_what_cannot_be_answered(
    admin: Nsqadmin, method: str, path: str, document: Any, status: int, message: str
) -> None:
    answer = admin.json(method, path, document)
    assert (answer.status, answer.json["message"]) == (status, message)


def test_an_unknown_topic_is_502_as_in_nsq(admin: Nsqadmin) -> None:
    answer = admin.json("GET", "/api/topics/nosuch")
    assert answer.status == 502
    assert answer.json["message"].startswith(
        'UPSTREAM_ERROR: failed to query any nsqlookupd: got response 404 Not Found "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"'
    )


def test_an_unknown_channel_is_404(admin: Nsqadmin, a_topic: str) -> None:
    answer = admin.json("GET", f"/api/topics/{a_topic}/nosuch")
    assert (answer.status, answer.json["message"]) == (404, "CHANNEL_NOT_FOUND")


def test_a_wrong_method_names_the_right_ones(admin: Nsqadmin) -> None:
    answer = admin.json("PUT", "/api/topics")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS, POST")
    options = admin.json("OPTIONS", "/api/topics")
    assert (options.status, options.headers["allow"], options.body) == (200, "GET, OPTIONS, POST", b"")


def test_answers_are_compressed_for_who_says_so(admin: Nsqadmin, a_topic: str) -> None:
    answer = admin.json("GET", f"/api/topics/{a_topic}", accept_encoding="deflate, gzip")
    assert answer.headers["content-encoding"] == "gzip"
    plain = admin.json("GET", f"/api/topics/{a_topic}", accept_encoding="gzip;q=0.5")
    assert "content-encoding" not in plain.headers


def test_ephemeral_names_are_percent_decoded(admin: Nsqadmin, cluster: Cluster, topic: str) -> None:
    name = f"{topic[:50]}#ephemeral"
    cluster.nodes[0].post(f"/topic/create?topic={name.replace('#', '%23')}")
    cluster.wait_for(name, 1)
    assert admin.json("GET", f"/api/topics/{name.replace('#', '%23')}").json["topic_name"] == name


# Actions


def test_creating_pausing_emptying_and_deleting_a_channel(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    def act(method: str, path: str, document: object = None) -> None:
        answer = admin.json(method, path, document)
        assert (answer.status, answer.json) == (200, {"message": ""}), answer

    act("POST", "/api/topics", {"topic": a_topic, "channel": "made"})
    assert all(node.channel(a_topic, "made") is not None for node in cluster.nodes)
    act("POST", f"/api/topics/{a_topic}/made", {"action": "pause"})
    assert all(node.channel(a_topic, "made")["paused"] for node in cluster.nodes)
    act("POST", f"/api/topics/{a_topic}/made", {"action": "unpause"})
    assert not any(node.channel(a_topic, "made")["paused"] for node in cluster.nodes)
    act("POST", f"/api/topics/{a_topic}/c", {"action": "empty"})
    assert not any(node.channel(a_topic, "c")["depth"] for node in cluster.nodes)
    act("DELETE", f"/api/topics/{a_topic}/made")
    assert all(node.channel(a_topic, "made") is None for node in cluster.nodes)


def test_pausing_and_deleting_a_topic(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    assert admin.json("POST", f"/api/topics/{a_topic}", {"action": "pause"}).json == {"message": ""}
    assert all(node.topic(a_topic)["paused"] for node in cluster.nodes)
    assert admin.json("POST", f"/api/topics/{a_topic}", {"action": "empty"}).json == {"message": ""}
    assert admin.json("DELETE", f"/api/topics/{a_topic}").json == {"message": ""}
    assert all(node.topic(a_topic) is None for node in cluster.nodes)
    assert a_topic not in admin.json("GET", "/api/topics").json["topics"]


def test_creating_a_topic_only_enters_it_in_the_directory(admin: Nsqadmin, cluster: Cluster, topic: str) -> None:
    body = json.dumps({"topic": topic, "unknown": 1}).encode() + b" and more"
    answer = admin.http("POST", "/api/topics", body, headers={"content-type": "text/plain"})
    assert (answer.status, answer.json) == (200, {"message": ""})
    assert all(topic in it.get("/topics")["topics"] for it in cluster.lookupds)
    assert cluster.nodes[0].topic(topic) is None


def test_a_tombstone_removes_a_topic_from_one_node(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    answer = admin.json("DELETE", f"/api/nodes/{name_of(cluster.nodes[0])}", {"topic": a_topic})
    assert (answer.status, answer.json) == (200, {"message": ""})
    assert cluster.nodes[0].topic(a_topic) is None
    assert cluster.nodes[1].topic(a_topic) is not None


def test_an_action_that_every_node_refuses_is_200_with_a_warning(admin: Nsqadmin, a_topic: str) -> None:
    answer = admin.json("POST", f"/api/topics/{a_topic}/nosuch", {"action": "pause"})
    refusal = 'got response 404 Not Found "{\\"message\\":\\"CHANNEL_NOT_FOUND\\"}"'
    assert answer.status == 200
    assert answer.json["message"] == f"WARNING: {refusal}\n{refusal}"


def test_a_page_of_another_origin_cannot_act(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    path, pause = f"/api/topics/{a_topic}", {"action": "pause"}
    for headers in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}):
        answer = admin.json("POST", path, pause, content_type="text/plain", **headers)
        assert (answer.status, answer.json["message"]) == (403, "FORBIDDEN_ORIGIN")
    assert not cluster.nodes[0].topic(a_topic)["paused"]
    ours = f"http://127.0.0.1:{admin.http_address[1]}"
    assert admin.json("POST", path, pause, origin=ours).status == 200


def test_nothing_is_done_by_get(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    admin.json("GET", f"/api/topics/{a_topic}?action=pause")
    assert not cluster.nodes[0].topic(a_topic)["paused"]


# Failures


def test_who_is_down_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            node.post("/topic/create?topic=t")
        cluster.wait_for("t")
        with Nsqadmin(*cluster.lookupd_options, PATIENT) as admin:
            cluster.lookupds[1].kill()
            address = f"127.0.0.1:{cluster.lookupds[1].http_address[1]}"
            document = admin.json("GET", "/api/topics").json
            assert document["topics"] == ["t"]
            assert document["message"] == (
                f'WARNING: Get "http://{address}/topics": dial tcp {address}: connect: connection refused'
            )
            cluster.nodes[1].kill()
            eventually(lambda: len(cluster.lookupds[0].producers("t")) == 1)
            document = admin.json("GET", "/api/topics/t").json
            assert [it["node"] for it in document["nodes"]] == [name_of(cluster.nodes[0])]
            cluster.lookupds[0].kill()
            answer = admin.json("GET", "/api/topics")
            assert answer.status == 502
            assert answer.json["message"].startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: Get ")


def test_an_empty_cluster_is_no_failure() -> None:
    with Nsqlookupd() as lookupd, Nsqadmin(f"lookupd-http-address=127.0.0.1:{lookupd.http_address[1]}") as admin:
        assert admin.json("GET", "/api/topics").json == {"topics": [], "message": ""}
        assert admin.json("GET", "/api/nodes").json == {"nodes": [], "message": ""}
        assert admin.json("GET", "/api/counter").json == {"stats": {}, "message": ""}


def test_a_static_list_of_nodes(cluster: Cluster, a_topic: str) -> None:
    with Nsqadmin(*cluster.nsqd_options, PATIENT) as admin:
        assert a_topic in admin.json("GET", "/api/topics").json["topics"]
        assert admin.json("GET", f"/api/topics/{a_topic}").json["message_count"] == 3
        node = admin.json("GET", "/api/nodes").json["nodes"][0]
        assert (node["remote_addresses"], node["remote_address"]) == (None, "")
        assert admin.json("GET", "/api/topics?inactive=true").json["topics"] == {}
        unknown = admin.json("GET", "/api/topics/nosuch")
        assert (unknown.status, unknown.json["message"]) == (502, "UPSTREAM_ERROR: failed to query any nsqd: ")
        assert admin.json("POST", "/api/topics", {"topic": "made"}).json == {"message": ""}
        refused = admin.json("POST", "/api/topics", {"topic": "made", "channel": "c"})
        assert (refused.status, refused.json["message"]) == (
            502,
            "UPSTREAM_ERROR: failed to query any nsqlookupd: ",
        )
        assert admin.json("POST", "/api/topics/nosuch", {"action": "pause"}).json == {"message": ""}


# Rights


def test_only_admin_users_may_change_anything(cluster: Cluster, a_topic: str) -> None:
    with Nsqadmin(*cluster.lookupd_options, PATIENT, "admin-user=ana") as admin:
        for method, path, document in (
            ("POST", "/api/topics", {"topic": "x"}),
            ("POST", f"/api/topics/{a_topic}", {"action": "pause"}),
            ("POST", f"/api/topics/{a_topic}/c", {"action": "pause"}),
            ("DELETE", f"/api/topics/{a_topic}", None),
            ("DELETE", f"/api/topics/{a_topic}/c", None),
            ("DELETE", f"/api/nodes/{name_of(cluster.nodes[0])}", {"topic": a_topic}),
        ):
            answer = admin.json(method, path, document, X_Forwarded_User="ben")
            assert (answer.status, answer.json["message"]) == (403, "FORBIDDEN"), path
        assert admin.json("GET", f"/api/topics/{a_topic}").status == 200
        done = admin.json("POST", f"/api/topics/{a_topic}", {"action": "pause"}, X_Forwarded_User="ana")
        assert (done.status, done.json) == (200, {"message": ""})


def test_roles_hold_on_the_old_api_too(cluster: Cluster, a_topic: str, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text(f'[[role]]\nname = "x"\nusers = ["ana"]\ncan = ["operator"]\ntopics = ["{a_topic}"]\n')
    audit = tmp_path / "audit.jsonl"
    with Nsqadmin(*cluster.lookupd_options, PATIENT, f"roles-file={roles}", f"audit-file={audit}") as admin:
        ana = {"X_Forwarded_User": "ana"}
        assert admin.json("GET", "/api/topics", **ana).json["topics"] == [a_topic]
        assert admin.json("GET", "/api/topics").status == 403
        assert admin.json("GET", "/api/v2/health").status == 403
        assert admin.json("GET", f"/api/topics/{a_topic}").status == 403
        assert admin.json("POST", f"/api/topics/{a_topic}", {"action": "pause"}, **ana).status == 200
        assert admin.json("DELETE", f"/api/topics/{a_topic}", **ana).status == 403
        assert admin.json("POST", f"/api/topics/{a_topic}/c", {"action": "empty"}, **ana).status == 403
        assert admin.http("PUT", "/config/log_level", b"debug").status == 403  # the address is not enough
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(it["what"], it["user"], it["result"]) for it in lines] == [
        ("pause_topic", "ana", "ok"),
        ("delete_topic", "ana", "refused"),
        ("empty_channel", "ana", "refused"),
    ]


def test_an_admin_of_some_topics_cannot_change_settings_of_all(cluster: Cluster, tmp_path: Path) -> None:
    roles = tmp_path / "roles.toml"
    roles.write_text(
        '[[role]]\nname = "some"\nusers = ["ana"]\ncan = ["admin"]\ntopics = ["orders*"]\n'
        '[[role]]\nname = "all"\nusers = ["ben"]\ncan = ["admin"]\n'
    )
    with Nsqadmin(*cluster.lookupd_options, PATIENT, f"roles-file={roles}") as admin:
        for path in ("/config/log_level", "/config/log_level?topic=orders"):
            refused = admin.http("PUT", path, b"debug", headers={"X-Forwarded-User": "ana"})
            assert refused.status == 403
            assert refused.json["reason"] == "ana does not have the right 'admin' for all topics"
        assert admin.http("PUT", "/config/log_level", b"debug", headers={"X-Forwarded-User": "ben"}).status == 200


def test_read_only_refuses_everybody(cluster: Cluster, a_topic: str) -> None:
    with Nsqadmin(*cluster.lookupd_options, PATIENT, "read-only") as admin:
        answer = admin.json("POST", f"/api/topics/{a_topic}", {"action": "pause"})
        assert (answer.status, answer.json["reason"]) == (403, "nsqadmin is read-only (--read-only)")
        assert admin.http("PUT", "/config/log_level", b"debug").status == 403


# /config, notifications, base path


def test_options_can_be_read_and_two_of_them_changed(cluster: Cluster) -> None:
    with Nsqadmin(*cluster.lookupd_options, PATIENT) as admin:
        assert admin.http("GET", "/config/statsd_interval").body == b"60000000000"
        text = admin.http("GET", "/config/acl_http_header")
        assert text.body == b"X-Forwarded-User"
        assert text.headers["content-type"].startswith("text/plain")
        assert admin.http("GET", "/config/nosuch").json["message"] == "INVALID_OPTION"
        assert admin.http("PUT", "/config/log_level", b"debug").body == b"1"
        assert admin.http("PUT", "/config/log_level", b"bogus").status == 400
        assert admin.http("PUT", "/config/log_level", b"").status == 413
        assert admin.http("PUT", "/config/http_address", b"x").json["message"] == "INVALID_OPTION"
        one = f"127.0.0.1:{cluster.lookupds[0].http_address[1]}"
        answer = admin.http("PUT", "/config/nsqlookupd_http_addresses", json.dumps([one]).encode())
        assert answer.json == [one]
        sources = {it for node in admin.json("GET", "/api/nodes").json["nodes"] for it in node["remote_addresses"]}
        assert {it.partition("/")[0] for it in sources} == {one}


def test_options_are_closed_to_other_networks(cluster: Cluster) -> None:
    with Nsqadmin(*cluster.lookupd_options, PATIENT, "allow-config-from-cidr=10.0.0.0/8") as admin:
        assert admin.json("GET", "/config/log_level", X_Forwarded_For="10.1.2.3").json["message"] == "FORBIDDEN"


def test_each_action_is_told_to_the_notification_endpoint(cluster: Cluster, a_topic: str) -> None:
    with (
        listener() as (url, received),
        Nsqadmin(*cluster.lookupd_options, PATIENT, f"notification-http-endpoint={url}") as admin,
    ):
        headers = {"authorization": "Basic amFuZTpwdw==", "user-agent": "UA/1", "host": "admin.example"}
        body = json.dumps({"topic": a_topic, "channel": "extra"}).encode()
        admin.http("POST", "/api/topics?x=1", body, headers={**headers, "X-Scheme": "https"})
        admin.json("DELETE", f"/api/nodes/{name_of(cluster.nodes[1])}", {"topic": a_topic})
        eventually(lambda: len(received) == 3)
    assert [it["action"] for it in received] == ["create_topic", "create_channel", "tombstone_topic_producer"]
    assert list(received[1]) == [
        "action",
        "topic",
        "channel",
        "timestamp",
        "user",
        "remote_ip",
        "user_agent",
        "url",
        "via",
    ]
    assert (received[1]["user"], received[1]["user_agent"]) == ("jane", "UA/1")
    assert received[1]["url"] == "https://admin.example/api/topics?x=1"
    assert "channel" not in received[0]
    assert received[2]["node"] == name_of(cluster.nodes[1])


def test_an_endpoint_that_is_not_there_does_no_harm(cluster: Cluster, a_topic: str) -> None:
    url = "notification-http-endpoint=http://127.0.0.1:1/"
    with Nsqadmin(*cluster.lookupd_options, PATIENT, url) as admin:
        for action in ("pause", "unpause"):
            assert admin.json("POST", f"/api/topics/{a_topic}", {"action": action}).status == 200
        eventually(lambda: admin.log.count("failed to POST notification") == 2)


def test_everything_is_under_the_base_path(cluster: Cluster) -> None:
    with Nsqadmin(*cluster.lookupd_options, PATIENT, "base-path=nsq/admin/") as admin:
        assert admin.http("GET", "/nsq/admin/ping").body == b"OK"
        assert admin.http("GET", "/nsq/admin/api/topics").status == 200
        assert admin.http("GET", "/nsq/admin").status == 200
        moved = admin.http("GET", "/nsq/admin/")
        assert (moved.status, moved.headers["location"]) == (301, "/nsq/admin")
        assert admin.http("GET", "/api/topics").status == 404
        assert admin.http("GET", "/").status == 404


@contextmanager
def listener() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve HTTP, and keep what is posted."""
    received: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["content-type"] == "application/json"
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
