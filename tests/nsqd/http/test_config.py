"""/config: values of options, and changes of those that may change."""

from __future__ import annotations

import json

import pytest

from nsqcommon.logs import LogLevel
from nsqcommon.wire.limits import SizeLimits
from nsqd.http.config import MOST_LOOKUPDS
from tests.nsqd.http.conftest import JSON, TEXT, Nsqd, code


@pytest.mark.parametrize(("key", "body", "content_type"), [
    ("tcp_address", b"0.0.0.0:4150", TEXT),
    ("broadcast_address", b"node1", TEXT),
    ("data_path", b"", None),
    ("max_msg_size", b"1048576", JSON),
    ("msg_timeout", b"60000000000", JSON),
    ("deflate", b"true", JSON),
    ("log_level", b"2", JSON),
    ("tls_required", b"0", JSON),
    ("tls_min_version", b"771", JSON),
    ("nsqlookupd_tcp_addresses", b"[]", JSON),
    ("e2e_processing_latency_percentiles", b"[]", JSON),
])  # fmt: skip
def test_option(nsqd: Nsqd, key: str, body: bytes, content_type: str | None) -> None:
    answer = nsqd.get(f"/config/{key}")
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers.get("content-type") == content_type


@pytest.mark.parametrize(
    "key", ["node_id", "lookupd_tcp_address", "version", "config", "verbose", "worker_id", "MAX", "x"]
)
def test_unknown_option(nsqd: Nsqd, key: str) -> None:
    assert nsqd.get(f"/config/{key}").body == code("INVALID_OPTION")


@pytest.mark.parametrize(("key", "body", "status", "answer"), [
    ("log_level", b"", 413, "INVALID_VALUE"),
    ("unknown", b"", 413, "INVALID_VALUE"),
    ("unknown", b"x" * 101, 413, "INVALID_VALUE"),
    ("unknown", b"x", 400, "INVALID_OPTION"),
    ("max_msg_size", b"1", 400, "INVALID_OPTION"),
    ("log_level", b"warning", 400, "INVALID_VALUE"),
    ("log_level", b'"info"', 400, "INVALID_VALUE"),
    ("log_level", b"info\n", 400, "INVALID_VALUE"),
    ("log_level", b"\xff", 400, "INVALID_VALUE"),
    ("nsqlookupd_tcp_addresses", b"a:1", 400, "INVALID_VALUE"),
    ("nsqlookupd_tcp_addresses", b"[1]", 400, "INVALID_VALUE"),
    ("nsqlookupd_tcp_addresses", b"{}", 400, "INVALID_VALUE"),
])  # fmt: skip
def test_bad_change_of_an_option(nsqd: Nsqd, key: str, body: bytes, status: int, answer: str) -> None:
    before = nsqd.settings.options
    got = nsqd.put(f"/config/{key}", body)
    assert (got.status, got.body) == (status, code(answer))
    assert nsqd.settings.options is before


def test_log_level_can_be_changed(nsqd: Nsqd) -> None:
    assert nsqd.put("/config/log_level", b"DeBug").body == b"1"
    assert nsqd.settings.options.log_level is LogLevel.DEBUG


@pytest.mark.parametrize(("body", "answer", "addresses"), [
    (b'["127.0.0.1:4160"]', b'["127.0.0.1:4160"]', ("127.0.0.1:4160",)),
    (b"[]", b"[]", ()),
    (b"null", b"null", ()),
])  # fmt: skip
def test_lookupd_addresses_can_be_changed(nsqd: Nsqd, body: bytes, answer: bytes, addresses: tuple[str, ...]) -> None:
    assert nsqd.put("/config/nsqlookupd_tcp_addresses", body).body == answer
    assert nsqd.settings.options.lookupd_tcp_address == addresses


def test_nsqlookupds_are_limited_as_all_of_them_are_dialled_at_once() -> None:
    nsqd = Nsqd(limits=SizeLimits(max_message=10_000, max_body=10_000))
    addresses = [f"127.0.0.1:{port}" for port in range(1, MOST_LOOKUPDS + 2)]
    refused = nsqd.put("/config/nsqlookupd_tcp_addresses", json.dumps(addresses).encode())
    assert (refused.status, json.loads(refused.body)["message"]) == (400, "INVALID_VALUE")
    assert nsqd.settings.options.lookupd_tcp_address == ()
    assert nsqd.put("/config/nsqlookupd_tcp_addresses", json.dumps(addresses[1:]).encode()).status == 200
