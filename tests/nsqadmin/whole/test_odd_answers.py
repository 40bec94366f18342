"""Each field of a node's answer with another type or size: always an error of the node, never one of ours."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from nsqadmin import numbers
from nsqadmin.cluster.merge import Directory, Merger, totals_of
from nsqadmin.cluster.node_stats import read_stats
from nsqadmin.cluster.sane import NotUnderstood
from nsqadmin.http.api_v1_documents import channel_document, counter_document, node_document, topic_document
from nsqadmin.upstream.discovery import Announced, info_in, producers_in, topics_in
from nsqadmin.upstream.slices import at_once

NODE = Announced("host", "127.0.0.1", 4150, 4151, region="r", zone="z")
LATENCY = {"count": 5, "percentiles": [{"quantile": 0.99, "value": 5000}]}
LOCAL = {"zone_local_msg_count": 1, "region_local_msg_count": 1, "global_msg_count": 1}
CLIENT = {
    "client_id": "c", "hostname": "h", "version": "V2", "remote_address": "a:1", "state": 3, "ready_count": 1,
    "in_flight_count": 1, "message_count": 1, "finish_count": 1, "requeue_count": 1, "connect_ts": 1_700_000_000,
    "sample_rate": 0, "deflate": False, "snappy": False, "user_agent": "u", "authed": True, "auth_identity": "i",
    "auth_identity_url": "u", "topology_region": "r", "topology_zone": "z", "tls": True, "tls_cipher_suite": "s",
    "tls_version": "v", "tls_negotiated_protocol": "p", "tls_negotiated_protocol_is_mutual": True,
}  # fmt: skip
COUNTS = {
    "depth": 1,
    "backend_depth": 1,
    "message_count": 1,
    "paused": False,
    "e2e_processing_latency": LATENCY,
    **LOCAL,
}
CHANNEL = {
    "channel_name": "c", **COUNTS, "in_flight_count": 1, "deferred_count": 1, "requeue_count": 1, "timeout_count": 1,
    "client_count": 2, "clients": [CLIENT, CLIENT | {"topology_region": "other"}],
}  # fmt: skip
STATS = {
    "version": "1.3.0",
    "health": "OK",
    "start_time": 1_700_000_000,
    "worker": 1,
    "topics": [{"topic_name": "t", **COUNTS, "message_bytes": 1, "channels": [CHANNEL]}],
    "memory": {"heap_in_use_bytes": 1, "heap_objects": 1, "gc_total_runs": 1},
    "producers": [{"client_id": "p", "connect_ts": 1, "pub_counts": [{"topic": "t", "count": 1}]}],
}
INFO = {"hostname": "h", "broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}
LISTED = {"producers": [{**INFO, "remote_address": "a:1", "topics": ["t"], "tombstones": [False]}]}
ODD: list[Any] = [
    None, True, -1, 1.5, 10**18, 10**30, 10**400, 1e300, "", "x", "5", "1.5", [], ["x"], [None], [[]], {}, {"x": 1}
]  # fmt: skip


def places(document: Any, *way: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value in the document."""
    if way:
        yield way
    if isinstance(document, dict | list):
        for key, it in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(it, *way, key)


def with_odd(document: Any, way: tuple[Any, ...], odd: Any) -> Any:
    made = copy.deepcopy(document)
    at = made
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = odd
    return made


@pytest.mark.parametrize("way", list(places(STATS)), ids=lambda way: ".".join(map(str, way)))
def test_statistics(way: tuple[Any, ...]) -> None:
    whole = read_stats("n", STATS, at=0.0)
    for odd in ODD:
        document = with_odd(STATS, way, odd)
        try:
            topics = at_once(topics_in(document))
        except NotUnderstood:
            with pytest.raises(NotUnderstood):
                read_stats("n", document, at=1.0, before=whole)
            continue
        both = [(NODE, topics), (NODE, STATS["topics"])]  # together with a correct answer
        for shown in (
            topic_document("t", both, now=1.0),  # type: ignore[arg-type]
            channel_document("t", "c", both, now=1.0),  # type: ignore[arg-type]
            node_document(NODE, topics, now=1.0),
            counter_document(both),  # type: ignore[arg-type]
        ):
            json.dumps(shown, allow_nan=False)
        answer = read_stats("n", document, at=1.0, before=whole)
        totals_of(Merger().merge([answer, whole], Directory(), now=1.0))
        for topic in answer.topics.values():
            for channel in topic.channels.values():
                for client in channel.row.clients or ():
                    numbers.clock(client.connect_time, 1.0)


@pytest.mark.parametrize("way", [*places(INFO), *places(LISTED)], ids=lambda way: ".".join(map(str, way)))
def test_odd_fields_in_listings_of_nodes(way: tuple[Any, ...]) -> None:
    for odd in ODD:
        try:
            if way[0] in INFO:
                found = [info_in(with_odd(INFO, way, odd), "127.0.0.1:4151")]
            else:
                found = at_once(producers_in(with_odd(LISTED, way, odd), most=1000)).producers
        except NotUnderstood:
            continue
        for it in found:
            assert isinstance(it.address, str)
            assert all(isinstance(topic, str) for topic in it.topics)
