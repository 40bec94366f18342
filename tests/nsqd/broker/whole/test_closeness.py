"""Topology-aware consumption: nearer consumers are served first, and counted separately."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.node import RULES, Client, Node

HERE = replace(RULES.features, topology_zone="z1", topology_region="r1")


def consumer(node: Node, zone: str, region: str, ready: int = 1) -> Client:
    body = json.dumps({"topology_zone": zone, "topology_region": region}).encode()
    client = node.client(b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body + b"SUB t c\n")
    client.say(b"RDY %d\n" % ready)
    return client


def publish(node: Node, count: int) -> None:
    client = node.client()
    for _ in range(count):
        client.ask(b"PUB t\n\0\0\0\1a")


def test_who_is_in_the_zone_comes_before_the_region_and_all_others() -> None:
    node = Node(features=HERE, prefers_near_consumers=True)
    far, region, zone = consumer(node, "z9", "r9"), consumer(node, "z2", "r1"), consumer(node, "z1", "r1")
    for served in (zone, region, far):
        publish(node, 1)
        assert [len(client.messages()) for client in (far, region, zone) if client is served] == [1]
    channel = node.channel()
    counts = (channel.zone_local_msg_count, channel.region_local_msg_count, channel.global_msg_count)
    assert counts == (1, 1, 1)


def test_a_client_without_identify_counts_as_distant() -> None:
    node = Node(prefers_near_consumers=True)
    node.consumer()
    publish(node, 1)
    assert node.channel().global_msg_count == 1


def test_two_empty_names_are_equal() -> None:
    node = Node(prefers_near_consumers=True)
    consumer(node, "", "")
    publish(node, 1)
    assert node.channel().zone_local_msg_count == 1


@pytest.mark.parametrize("zone", ["z1", "z2"])
def test_without_the_experiment_all_are_alike(zone: str) -> None:
    node = Node(features=HERE)
    consumer(node, zone, "r1")
    publish(node, 1)
    assert node.channel().global_msg_count == 1
