"""Every endpoint except publishing: answers to the byte, and the order of checks."""

from __future__ import annotations

import gc
import json

import pytest

from common.logs import LogLevel
from nsqd.broker.store import NotSynced
from tests.support.asgi import ask
from tests.support.fake_broker import bodies
from tests.unit.nsqd.http.conftest import Nsqd

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"


def code(name: str) -> bytes:
    return b'{"message":"%s"}' % name.encode()


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


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_head_and_wrong_methods(nsqd: Nsqd, method: str) -> None:
    assert ask(nsqd.app, method, "/topic/create?topic=t").status == 405


# Topics


def test_topic_create_is_idempotent(nsqd: Nsqd) -> None:
    for _ in range(2):
        answer = nsqd.post("/topic/create?topic=t%23ephemeral")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers == {"x-nsq-content-type": "nsq; version=1.0", "content-length": "0"}
    assert list(nsqd.broker.topics) == ["t#ephemeral"]


@pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
def test_topic_routes_want_a_topic(nsqd: Nsqd, action: str) -> None:
    assert nsqd.post(f"/topic/{action}?a;b").body == code("INVALID_REQUEST")
    assert nsqd.post(f"/topic/{action}", b"topic=t").body == code("MISSING_ARG_TOPIC")


@pytest.mark.parametrize(("action", "status", "answer"), [
    ("create", 400, "INVALID_TOPIC"),
    ("empty", 400, "INVALID_TOPIC"),
    ("delete", 404, "TOPIC_NOT_FOUND"),
    ("pause", 404, "TOPIC_NOT_FOUND"),
    ("unpause", 404, "TOPIC_NOT_FOUND"),
])  # fmt: skip
def test_bad_topic_name(nsqd: Nsqd, action: str, status: int, answer: str) -> None:
    for name in ("a%0A", "", "%FF"):
        got = nsqd.post(f"/topic/{action}?topic={name}")
        assert (got.status, got.body) == (status, code(answer))


@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_unknown_topic(nsqd: Nsqd, action: str) -> None:
    answer = nsqd.post(f"/topic/{action}?topic=t")
    assert (answer.status, answer.body) == (404, code("TOPIC_NOT_FOUND"))
    assert nsqd.broker.topics == {}


@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_answer_to_a_topic_action_waits_for_the_disk(nsqd: Nsqd, action: str) -> None:
    nsqd.broker.topic("t")
    assert nsqd.post(f"/topic/{action}?topic=t").status == 200
    assert (nsqd.turn.finished, nsqd.turn.synced) == (1, 1)


def test_topic_actions(nsqd: Nsqd) -> None:
    topic = nsqd.broker.topic("t")
    nsqd.post("/pub?topic=t", b"x")
    nsqd.post("/topic/pause?topic=t")
    assert topic.paused
    nsqd.post("/topic/unpause?topic=t")
    assert not topic.paused
    assert topic.depth == 1
    nsqd.post("/topic/empty?topic=t")
    assert topic.depth == 0
    nsqd.post("/topic/delete?topic=t")
    assert nsqd.broker.topics == {}


# Channels


@pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
@pytest.mark.parametrize(("query", "status", "answer"), [
    ("%z", 400, "INVALID_REQUEST"),
    ("", 400, "MISSING_ARG_TOPIC"),
    ("channel=!", 400, "MISSING_ARG_TOPIC"),
    ("topic=", 400, "INVALID_ARG_TOPIC"),
    ("topic=!&channel=!", 400, "INVALID_ARG_TOPIC"),
    ("topic=unknown", 400, "MISSING_ARG_CHANNEL"),
    ("topic=unknown&channel=", 400, "INVALID_ARG_CHANNEL"),
    ("topic=unknown&channel=c", 404, "TOPIC_NOT_FOUND"),
])  # fmt: skip
def test_channel_routes_check_in_order(nsqd: Nsqd, action: str, query: str, status: int, answer: str) -> None:
    got = nsqd.post(f"/channel/{action}?{query}")
    assert (got.status, got.body) == (status, code(answer))
    assert nsqd.broker.topics == {}


@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_unknown_channel(nsqd: Nsqd, action: str) -> None:
    nsqd.broker.topic("t")
    answer = nsqd.post(f"/channel/{action}?topic=t&channel=c")
    assert (answer.status, answer.body) == (404, code("CHANNEL_NOT_FOUND"))


def test_channel_actions(nsqd: Nsqd) -> None:
    topic = nsqd.broker.topic("t")
    for _ in range(2):
        assert nsqd.post("/channel/create?topic=t&channel=c").status == 200
    channel = topic.channels["c"]
    nsqd.post("/pub?topic=t", b"x")
    nsqd.post("/channel/pause?topic=t&channel=c")
    assert channel.paused
    nsqd.post("/channel/unpause?topic=t&channel=c")
    assert not channel.paused
    assert channel.depth == 1
    nsqd.post("/channel/empty?topic=t&channel=c")
    assert channel.depth == 0
    assert nsqd.post("/channel/delete?topic=t&channel=c").body == b""
    assert topic.channels == {}
    assert nsqd.turn.synced == 4


# Options


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


# Debug


def test_command_line_and_symbols(nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["nsqd", "--log-level=debug"])
    answer = nsqd.get("/debug/pprof/cmdline")
    assert answer.body == b"nsqd\0--log-level=debug"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "x-nsq-content-type" not in answer.headers
    assert nsqd.get("/debug/pprof/symbol").body == b"num_symbols: 1\n"
    assert nsqd.post("/debug/pprof/symbol").body == b"num_symbols: 1\n"


def test_free_memory_frees_and_answers_500(nsqd: Nsqd) -> None:
    before = gc.get_stats()[2]["collections"]
    answer = nsqd.post("/debug/freememory")
    assert (answer.status, answer.body) == (500, code("INTERNAL_ERROR"))
    assert gc.get_stats()[2]["collections"] > before


def test_block_rate(nsqd: Nsqd) -> None:
    assert nsqd.put("/debug/setblockrate?rate=5").body == code("INTERNAL_ERROR")
    answer = nsqd.put("/debug/setblockrate?rate=x%22")
    assert (answer.status, answer.body) == (
        400,
        b'invalid block rate : strconv.Atoi: parsing "x\\"": invalid syntax',
    )
    assert nsqd.put("/debug/setblockrate").body.endswith(b'parsing "": invalid syntax')
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert ask(nsqd.app, "PUT", "/debug/setblockrate?rate=x", b"rate=7", form).status == 500


def test_stats_arguments(nsqd: Nsqd) -> None:
    assert nsqd.get("/stats?format=json&topic=%zz").body == code("INVALID_REQUEST")
    nsqd.broker.topic("t").channel("c")
    stats = json.loads(nsqd.get("/stats?format=json&include_clients=false&include_mem=0").body)
    assert "memory" not in stats
    assert stats["topics"][0]["channels"][0]["clients"] is None
    assert nsqd.get("/stats?format=JSON").headers["content-type"] == TEXT


# A journal that cannot be written


@pytest.mark.parametrize(
    "path",
    [
        "/topic/create?topic=new",
        "/topic/delete?topic=t",
        "/topic/pause?topic=t",
        "/channel/create?topic=t&channel=new",
        "/channel/delete?topic=t&channel=c",
        "/channel/pause?topic=t&channel=c",
        "/channel/empty?topic=t&channel=c",
    ],
)
def test_operation_that_is_not_in_the_journal_has_failed(nsqd: Nsqd, path: str) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.turn.journal_error = "no space left on device"
    answer = nsqd.post(path)
    assert (answer.status, answer.body) == (500, code("INTERNAL_ERROR"))


@pytest.mark.parametrize(
    "path",
    [
        "/topic/delete?topic=t",
        "/topic/empty?topic=t",
        "/topic/pause?topic=t",
        "/channel/delete?topic=t&channel=c",
        "/channel/pause?topic=t&channel=c",
    ],
)
def test_operation_that_is_not_synced_has_failed(
    nsqd: Nsqd, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise NotSynced("fsync journal.000001: input/output error")

    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    monkeypatch.setattr(nsqd.turn, "durable", fail)
    answer = nsqd.post(path)
    assert (answer.status, answer.body) == (500, code("INTERNAL_ERROR"))
    assert "a change is not on disk error=fsync journal.000001: input/output error" in caplog.text
    assert "Traceback" not in caplog.text


def test_what_changes_nothing_needs_no_journal(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    nsqd.turn.journal_error = "no space left on device"
    assert nsqd.post("/topic/create?topic=t").status == 200
    assert nsqd.post("/channel/create?topic=t&channel=c").status == 200


@pytest.mark.parametrize("path", ["/pub?topic=t", "/mpub?topic=t", "/pub?topic=new"])
def test_nothing_is_published_while_the_journal_is_broken(nsqd: Nsqd, path: str) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.turn.journal_error = "no space left on device"
    answer = nsqd.post(path, b"x")
    assert (answer.status, answer.body) == (503, code("EXITING"))
    assert bodies(nsqd.store, "t") == []
