"""The endpoints about the whole node, to the byte."""

from __future__ import annotations

import json

from tests.nsqd.http.conftest import JSON, TEXT, Nsqd, code


def test_ping(nsqd: Nsqd) -> None:
    answer = nsqd.get("/ping?%zz")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers == {"content-length": "2", "content-type": TEXT}


def test_ping_when_the_disk_fails(nsqd: Nsqd) -> None:
    nsqd.store.health = "NOK - no space left on device"
    answer = nsqd.get("/ping")
    assert (answer.status, answer.body) == (500, b"NOK - no space left on device")
    assert answer.headers["content-type"] == TEXT
    assert "x-nsq-content-type" not in answer.headers


def test_info(nsqd: Nsqd) -> None:
    answer = nsqd.get("/info")
    assert answer.headers["content-type"] == JSON
    assert answer.body == (
        b'{"version":"1.3.0","broadcast_address":"node1","hostname":"node1","http_port":4151,"tcp_port":4150,'
        b'"start_time":1700000000,"max_heartbeat_interval":60000000000,"max_output_buffer_size":65536,'
        b'"max_output_buffer_timeout":30000000000,"max_deflate_level":6,"topology_zone":"","topology_region":""}'
    )


def test_stats_arguments(nsqd: Nsqd) -> None:
    assert nsqd.get("/stats?format=json&topic=%zz").body == code("INVALID_REQUEST")
    nsqd.broker.topic("t").channel("c")
    stats = json.loads(nsqd.get("/stats?format=json&include_clients=false&include_mem=0").body)
    assert "memory" not in stats
    assert stats["topics"][0]["channels"][0]["clients"] is None
    assert nsqd.get("/stats?format=JSON").headers["content-type"] == TEXT
