"""--incident-webhook with real processes: a node that hangs is posted, with its end, and the URL stays a secret."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.http_sink import HttpSink
from tests.support.process import Nsqadmin, eventually, needs_module

needs_module("starlette")

QUICK = ("sample-interval=200ms", "discovery-interval=200ms")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with a_cluster(tmp_path / "cluster") as it:
        yield it


def posts_about(receiver: HttpSink, subject: str) -> list[dict[str, Any]]:
    return [it for it in map(json.loads, receiver.bodies) if it["subject"] == subject]


def test_an_incident_is_posted_once_over_a_restart_and_its_end_as_well(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    with (
        HttpSink() as receiver,
        Nsqadmin(
            *(*cluster.lookupd_options, *QUICK, f"history-file={tmp_path / 'history'}"),
            *(f"incident-webhook={receiver.url}/T0/hunter2", "external-url=https://admin.example", "base-path=/nsq"),
        ) as admin,
    ):

        def healths() -> list[str]:
            return [it["health"] for it in admin.json("GET", "/nsq/api/v2/nodes").json["nodes"]]

        # A node that hangs before it has registered is unknown, and one that has never answered is another incident.
        eventually(lambda: healths() == ["ok", "ok"])
        node.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: "problem" in [it["severity"] for it in posts_about(receiver, name_of(node))])
            admin.restart()
            eventually(lambda: admin.http("GET", "/nsq/healthz").status == 200)
        finally:
            node.send_signal(signal.SIGCONT)
        eventually(lambda: "closed" in [it["kind"] for it in posts_about(receiver, name_of(node))])
        opened, *worse, closed = posts_about(receiver, name_of(node))  # first it is only slow
        assert [it["kind"] for it in (opened, *worse, closed)] == ["opened", *["worse"] * len(worse), "closed"]
        assert len(worse) <= 1
        assert opened["url"] == f"https://admin.example/nsq/incidents/{opened['key']}"
        assert f"{name_of(node)}: does not answer" in closed["text"]
        metrics = admin.http("GET", "/nsq/metrics").body.decode()
        assert f'nsqadmin_incident_posts_total{{receiver="{receiver.address}",result="failed"}} 0' in metrics
        shown = admin.http("GET", "/nsq/config/incident_webhooks").json
        assert shown == [f"{receiver.url}/xxxxx"]
        assert "hunter2" not in admin.log


def test_a_receiver_that_refuses_is_in_the_activity(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    with (
        HttpSink(lambda request: 410) as receiver,
        Nsqadmin(*cluster.lookupd_options, *QUICK, f"incident-webhook={receiver.url}/hunter2") as admin,
    ):
        node.post("/topic/create?topic=t")
        node.post("/channel/create?topic=t&channel=c")
        node.post("/pub?topic=t", b"one")

        def failure() -> dict[str, Any] | None:
            entries = admin.json("GET", "/api/v2/activity").json["activity"]
            return next((it for it in entries if it["what"] == "incident_webhook_fails"), None)

        assert eventually(failure)["text"] == f"posts about incidents fail at {receiver.address}: got response 410"
        assert "hunter2" not in admin.log
