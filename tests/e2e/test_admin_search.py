"""Searching a history of 40,000 messages on two real nsqd, one of which is then stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from struct import pack
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.e2e.test_admin_v2 import QUICK, stream
from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")

pytestmark = pytest.mark.e2e

COUNT: Final = 20_000  # messages on each node


def publish_orders(node: Nsqd, topic: str, first: int, count: int) -> None:
    for start in range(first, first + count, 5000):
        bodies = [b'{"order_id":%d,"customer":{"country":"DE"}}' % number for number in range(start, start + 5000)]
        packed = pack(">I", len(bodies)) + b"".join(pack(">I", len(body)) + body for body in bodies)
        node.post(f"/mpub?topic={topic}&binary=true", packed)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as it:
        for number, node in enumerate(it.nodes):
            for channel in ("billing", "shipping"):
                node.post("/topic/create?topic=orders")
                node.post(f"/channel/create?topic=orders&channel={channel}")
            publish_orders(node, "orders", number * COUNT, COUNT)
        it.wait_for("orders")
        yield it


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Nsqadmin]:
    with Nsqadmin(*cluster.lookupd_options, *QUICK) as it:
        eventually(lambda: sum(log["next"] for log in logs(it)) == 2 * COUNT)
        yield it
        assert "Traceback" not in it.log


def logs(admin: Nsqadmin) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.json("GET", "/api/v2/logs/orders").json.get("logs", [])
    return found


def search(admin: Nsqadmin, wanted: str, **more: object) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the hits, and how far the search had looked each time it said so; the last is the end."""
    arguments = "".join(f"&{name}={quote(str(value))}" for name, value in more.items())
    hits: list[Any] = []
    progress: list[dict[str, Any]] = []
    with stream(admin, f"/api/v2/search/orders?filter={quote(wanted)}{arguments}") as events:
        for name, data in events:
            if name == "message":
                hits.append(data)
            else:
                progress.append(data)
    return hits, progress


def test_one_of_the_oldest_is_found_among_40000(admin: Nsqadmin) -> None:
    hits, progress = search(admin, "order_id = 123")
    assert [json.loads(hit["body"])["order_id"] for hit in hits] == [123]
    assert len(progress) > 5
    assert [it["looked"] for it in progress] == sorted(it["looked"] for it in progress)
    assert (progress[-1]["looked"], progress[-1]["is_whole"]) == (2 * COUNT, True)


def test_a_search_goes_on_where_it_stopped(admin: Nsqadmin) -> None:
    numbers: list[int] = []
    cursor, goes_on = "", True
    while goes_on:
        hits, progress = search(admin, "order_id < 7", limit=3, cursor=cursor)
        numbers += [json.loads(hit["body"])["order_id"] for hit in hits]
        cursor, goes_on = progress[-1]["cursor"], progress[-1]["goes_on"]
    assert numbers == [6, 5, 4, 3, 2, 1, 0]


def test_a_cursor_that_is_none_is_refused(admin: Nsqadmin) -> None:
    answer = admin.json("GET", "/api/v2/search/orders?cursor=nonsense")
    assert (answer.status, answer.json["message"]) == (400, "INVALID_ARG_CURSOR")


def test_a_node_that_hangs_is_named_and_the_other_is_searched(admin: Nsqadmin, cluster: Cluster) -> None:
    hanging = cluster.nodes[1]
    os.kill(hanging.pid, signal.SIGSTOP)
    try:
        hits, progress = search(admin, "order_id = 123")
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
    assert [json.loads(hit["body"])["order_id"] for hit in hits] == [123]
    assert [it["node"] for it in progress[-1]["silent"]] == [name_of(hanging)]
    assert not progress[-1]["is_whole"]
