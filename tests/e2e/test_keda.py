"""KEDA's scaler for NSQ finds what it asks for: `depth_for_keda` asks and adds up as pkg/scalers/nsq_scaler.go of KEDA does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.cluster import Cluster, a_cluster
from tests.support.process import Daemon, Nsqd, eventually

ACCEPT = {"Accept": "application/json; charset=utf-8"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic that no other test has."""
    return str(request.node.name)[-60:]


def depth_for_keda(cluster: Cluster, topic: str, channel: str) -> int:
    """Return the depth on all nodes. What KEDA takes for an error fails the test, as then KEDA does not scale."""
    nodes = {it.http_address[1]: it for it in cluster.nodes}
    found = [producers(lookupd, topic) for lookupd in cluster.lookupds]
    hosts = {(it["broadcast_address"], it["http_port"]) for listed in found for it in listed}
    return sum(depth_on(nodes[port], topic, channel) for _, port in hosts)


def producers(lookupd: Daemon, topic: str) -> list[Any]:
    answer = lookupd.http("GET", "/lookup?" + urlencode({"topic": topic}), headers=ACCEPT)
    if answer.status == 404:  # another nsqlookupd may know the topic
        return []
    assert answer.status == 200, answer
    listed: list[Any] = answer.json["producers"]
    assert all(type(it["http_port"]) is int and type(it["broadcast_address"]) is str for it in listed)
    return listed


def depth_on(node: Daemon, topic: str, channel: str) -> int:
    query = {"format": "json", "include_clients": "false", "include_mem": "false", "topic": topic}
    answer = node.http("GET", "/stats?" + urlencode(query))
    assert answer.status == 200, answer
    depth = 0
    for it in answer.json["topics"] or ():
        assert (it["topic_name"], type(it["depth"])) == (topic, int)
        named = [found for found in it["channels"] or () if found["channel_name"] == channel]
        for found in named:
            assert (type(found["depth"]), type(found["paused"])) == (int, bool)
        depth += sum(found["depth"] for found in named if not found["paused"]) if named else it["depth"]
    return depth


def fill(node: Nsqd, topic: str, count: int) -> None:
    """Create the topic and its channel, and return when so many messages wait in the channel.

    They wait in the topic, where KEDA doesn't count them, until nsqd has asked nsqlookupd for other channels.
    """
    node.post(f"/topic/create?topic={topic}")
    node.post(f"/channel/create?topic={topic}&channel=c")
    node.connect().publish(topic, *[b"x"] * count)
    eventually(lambda: node.channel(topic)["depth"] == count)


def test_messages_of_all_nodes_are_counted_once(cluster: Cluster, topic: str) -> None:
    for node, count in zip(cluster.nodes, (3, 4), strict=True):
        fill(node, topic, count)
    cluster.wait_for(topic)
    assert depth_for_keda(cluster, topic, "c") == 7


def test_messages_without_a_channel_start_the_first_consumer(cluster: Cluster, topic: str) -> None:
    one, other = cluster.nodes
    one.connect().publish(topic, b"x", b"y")
    other.post(f"/topic/create?topic={topic}")
    cluster.wait_for(topic)
    assert depth_for_keda(cluster, topic, "c") == 2


def test_a_paused_channel_starts_nobody(cluster: Cluster, topic: str) -> None:
    for node in cluster.nodes:
        fill(node, topic, 1)
    cluster.wait_for(topic)
    for node, left in zip(cluster.nodes, (1, 0), strict=True):
        node.post(f"/channel/pause?topic={topic}&channel=c")
        assert depth_for_keda(cluster, topic, "c") == left


def test_what_is_in_flight_or_deferred_does_not_wait(cluster: Cluster, topic: str) -> None:
    node, _ = cluster.nodes
    node.post(f"/topic/create?topic={topic}")
    node.post(f"/channel/create?topic={topic}&channel=c")
    node.connect().publish(topic, b"x", b"y")
    node.post(f"/pub?topic={topic}&defer=3600000", b"later")
    cluster.wait_for(topic, 1)
    consumer = node.connect()
    consumer.subscribe(topic, "c", ready=1)
    consumer.message()
    assert eventually(lambda: node.channel(topic)["in_flight_count"] == 1)
    assert depth_for_keda(cluster, topic, "c") == 1


def test_a_topic_that_nobody_knows_is_no_error(cluster: Cluster) -> None:
    assert depth_for_keda(cluster, "none", "c") == 0
