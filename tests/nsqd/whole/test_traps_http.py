"""What ports of nsqd usually miss on the HTTP side. The numbers are rows of docs/reference/nsq-traps.md."""

from __future__ import annotations

import json
import re
import socket
from struct import pack

import pytest

from nsqcommon.wire.commands import pub
from tests.support.client import TIMEOUT
from tests.support.process import Answer, Nsqd, eventually


def error(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["message"]


def consumed(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    consumer = nsqd.connect()
    consumer.subscribe(topic, ready=100)
    bodies = consumer.bodies(count)
    assert consumer.stays_silent(0.05)
    return bodies


# Names and publishing


def test_trap_04_a_name_ends_where_it_ends(nsqd: Nsqd) -> None:
    assert error(nsqd.http("POST", "/pub?topic=a%0A", b"x")) == (400, "INVALID_TOPIC")
    assert error(nsqd.http("POST", "/topic/create?topic=a%0A")) == (400, "INVALID_TOPIC")


def test_trap_34_an_empty_body_is_seen_before_the_topic(nsqd: Nsqd) -> None:
    assert error(nsqd.http("POST", "/pub")) == (400, "MSG_EMPTY")
    assert error(nsqd.http("POST", "/pub", b"x")) == (400, "MISSING_ARG_TOPIC")


def test_trap_34_a_body_too_big_is_refused_before_it_comes(nsqd: Nsqd) -> None:
    with socket.create_connection(nsqd.http_address, timeout=TIMEOUT) as sock:
        sock.sendall(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n")
        answer = sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/pub?topic=bad!", (400, "INVALID_TOPIC")),
        ("/pub?topic=", (400, "INVALID_TOPIC")),
        ("/mpub?topic=bad!", (400, "INVALID_TOPIC")),
        ("/topic/create?topic=bad!", (400, "INVALID_TOPIC")),
        ("/topic/empty?topic=bad!", (400, "INVALID_TOPIC")),
        ("/topic/empty?topic=nobody-knows", (404, "TOPIC_NOT_FOUND")),
        ("/topic/delete?topic=bad!", (404, "TOPIC_NOT_FOUND")),
        ("/topic/pause?topic=bad!", (404, "TOPIC_NOT_FOUND")),
        ("/topic/unpause?topic=bad!", (404, "TOPIC_NOT_FOUND")),
        ("/topic/delete", (400, "MISSING_ARG_TOPIC")),
        ("/channel/create?topic=bad!", (400, "INVALID_ARG_TOPIC")),
        ("/channel/create?topic=nobody-knows", (400, "MISSING_ARG_CHANNEL")),
        ("/channel/create?topic=nobody-knows&channel=bad!", (400, "INVALID_ARG_CHANNEL")),
        ("/channel/create?topic=nobody-knows&channel=c", (404, "TOPIC_NOT_FOUND")),
        ("/channel/pause?topic=bad!&channel=c", (400, "INVALID_ARG_TOPIC")),
        ("/channel/delete?channel=c", (400, "MISSING_ARG_TOPIC")),
    ],
)
def test_trap_35_each_route_has_its_own_word_for_a_bad_name(nsqd: Nsqd, path: str, expected: tuple[int, str]) -> None:
    assert error(nsqd.http("POST", path, b"x")) == expected


def test_trap_35_an_unknown_channel_is_not_found(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    for verb in ("delete", "empty", "pause", "unpause"):
        answer = nsqd.http("POST", f"/channel/{verb}?topic={topic}&channel=c")
        assert error(answer) == (404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize("word", ["true", "1", "no", "True", ""])
def test_trap_36_any_word_but_false_and_0_means_binary(nsqd: Nsqd, topic: str, word: str) -> None:
    body = pack(">ii", 1, 1) + b"x"
    assert nsqd.http("POST", f"/mpub?topic={topic}&binary={word}", body).body == b"OK"
    assert consumed(nsqd, topic, 1) == [b"x"]


@pytest.mark.parametrize("word", ["false", "0"])
def test_trap_36_false_and_0_mean_text(nsqd: Nsqd, topic: str, word: str) -> None:
    assert nsqd.http("POST", f"/mpub?topic={topic}&binary={word}", b"a\nb").body == b"OK"
    assert consumed(nsqd, topic, 2) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (pack(">i", 0), "BAD_BODY"),
        (pack(">ii", 1, 0), "BAD_MESSAGE"),
        (pack(">ii", 2, 1) + b"x", "BAD_MESSAGE"),
        (pack(">ii", 1, 5) + b"x", "BAD_MESSAGE"),
    ],
)
def test_trap_36_errors_of_binary_are_413(nsqd: Nsqd, topic: str, body: bytes, code: str) -> None:
    assert error(nsqd.http("POST", f"/mpub?topic={topic}&binary=true", body)) == (413, code)
    assert nsqd.topic(topic)["message_count"] == 0


def test_trap_37_lines_keep_their_cr_and_empty_ones_go(nsqd: Nsqd, topic: str) -> None:
    assert nsqd.http("POST", f"/mpub?topic={topic}", b"a\r\n\n\nb\n\r\nc").body == b"OK"
    assert consumed(nsqd, topic, 4) == [b"a\r", b"b", b"\r", b"c"]


def test_trap_37_no_message_at_all_is_fine(nsqd: Nsqd, topic: str) -> None:
    assert nsqd.http("POST", f"/mpub?topic={topic}", b"\n\n").body == b"OK"
    assert nsqd.topic(topic)["message_count"] == 0


@pytest.mark.parametrize("query", ["topic=%zz", "topic=a;b=c", "x=%", "a=1&b=%2"])
def test_trap_38_a_bad_escape_or_a_semicolon_spoils_the_query(nsqd: Nsqd, query: str) -> None:
    assert error(nsqd.http("GET", f"/stats?{query}")) == (400, "INVALID_REQUEST")
    assert error(nsqd.http("POST", f"/pub?{query}", b"x")) == (400, "INVALID_REQUEST")
    assert error(nsqd.http("POST", f"/topic/create?{query}")) == (400, "INVALID_REQUEST")


# Statistics


def test_trap_39_unknown_is_null_and_empty_is_a_list(nsqd: Nsqd, topic: str) -> None:
    unknown = nsqd.stats("nobody-knows")
    assert (unknown["topics"], unknown["producers"]) == (None, None)
    nsqd.post(f"/topic/create?topic={topic}")
    found = nsqd.topic(topic)
    assert found["channels"] == []
    assert found["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    assert nsqd.http("GET", f"/stats?format=json&topic={topic}&channel=none").json["topics"] == []


def test_trap_39_clients_are_null_only_where_they_are_left_out(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    assert nsqd.channel(topic)["clients"] == []
    without = nsqd.http("GET", f"/stats?format=json&topic={topic}&include_clients=false&include_mem=0").json
    assert without["topics"][0]["channels"][0]["clients"] is None
    assert without["producers"] is None
    assert "memory" not in without


def test_trap_40_a_producer_shows_one_count_at_most(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.identify(client_id=topic)
    client.subscribe(topic)
    client.publish(topic, b"x", b"y")
    client.publish(f"{topic[:60]}-b", b"x")

    def mine(name: str) -> list[dict[str, object]]:
        return [it for it in nsqd.stats(name)["producers"] if it["client_id"] == topic]

    assert mine(topic)[0]["pub_counts"] == [{"topic": topic, "count": 2}]
    assert mine(f"{topic[:60]}-b")[0]["pub_counts"] == [{"topic": f"{topic[:60]}-b", "count": 1}]
    assert len(mine("")[0]["pub_counts"]) == 1  # type: ignore[arg-type]  # JSON
    assert nsqd.channel(topic)["clients"][0]["client_id"] == topic
    nsqd.connect().subscribe(f"{topic[:60]}-c")
    (unpublished,) = mine(f"{topic[:60]}-c")
    assert "pub_counts" not in unpublished


def test_trap_41_json_is_as_go_writes_it(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.identify(client_id="<a&b>", hostname="\u2028é\x7f\x08", user_agent='"\n')
    client.subscribe(topic)
    answer = nsqd.http("GET", f"/stats?format=json&topic={topic}")
    assert rb'"client_id":"\u003ca\u0026b\u003e","hostname":"\u2028' + "é\x7f".encode() + rb'\u0008"' in answer.body
    assert rb'"user_agent":"\"\n"' in answer.body
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert b": " not in answer.body
    assert re.match(rb'{"version":"1.3.0","health":"OK","start_time":\d+,"topics":\[', answer.body)


def test_trap_41_a_channel_byte_for_byte(nsqd: Nsqd, topic: str) -> None:
    client = nsqd.connect()
    client.subscribe(topic, ready=1)
    client.publish(topic, b"x")
    client.message()
    found = nsqd.http("GET", f"/stats?format=json&topic={topic}").body
    channel = found[found.index(b'{"channel_name"') : found.index(b',"depth":0,"backend_depth":0,"message_count"')]
    steady = re.sub(rb'"(remote_address|connect_ts)":("[^"]+"|\d+)', rb'"\1":_', channel)
    assert steady == (
        b'{"channel_name":"c","depth":0,"backend_depth":0,"in_flight_count":1,"deferred_count":0,"message_count":1,'
        b'"global_msg_count":1,"requeue_count":0,"timeout_count":0,"client_count":1,"clients":[{"client_id":"127.0.0.1",'
        b'"hostname":"127.0.0.1","version":"V2","remote_address":_,"state":3,"ready_count":1,"in_flight_count":1,'
        b'"message_count":1,"finish_count":0,"requeue_count":0,"connect_ts":_,"sample_rate":0,"deflate":false,'
        b'"snappy":false,"user_agent":"","topology_zone":"","topology_region":"","pub_counts":[{"topic":"'
        + topic.encode()
        + b'","count":1}],"tls":false,"tls_cipher_suite":"","tls_version":"","tls_negotiated_protocol":"",'
        b'"tls_negotiated_protocol_is_mutual":false}],"paused":false,"e2e_processing_latency":{"count":0,'
        b'"percentiles":null}}]'
    )


def test_trap_63_who_publishes_has_the_line_of_a_producer_in_the_text(nsqd: Nsqd, topic: str) -> None:
    client, other = nsqd.connect(), nsqd.connect()
    for each in (client, other):
        each.subscribe(topic, ready=1)
    client.publish(topic, b"x")
    eventually(lambda: nsqd.channel(topic)["in_flight_count"] == 1)
    text = nsqd.http("GET", f"/stats?topic={topic}").body.decode()
    name = re.escape(topic)
    assert re.search(rf"^   \[{name} *\] depth: 0     be-depth: 0     msgs: 1        e2e%: $", text, re.MULTILINE)
    producer = rf"^        \[V2 127.0.0.1:\d+ +\] msgs: 1        topics: {name}=1 connected: \d+s$"
    consumer = r"^        \[V2 127.0.0.1:\d+ +\] state: 3 inflt: \d    rdy: 1    fin: 0        re-q: 0        msgs: \d        connected: \d+s$"
    assert len(re.findall(producer, text, re.MULTILINE)) == 1
    assert len(re.findall(consumer, text, re.MULTILINE)) == 1


# The rest of the API


def test_trap_42_ping_is_plain(nsqd: Nsqd) -> None:
    answer = nsqd.http("GET", "/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert "x-nsq-content-type" not in answer.headers
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path", "expected", "allow"),
    [
        ("GET", "/nowhere", (404, "NOT_FOUND"), None),
        ("GET", "/config/", (404, "NOT_FOUND"), None),
        ("GET", "/pub", (405, "METHOD_NOT_ALLOWED"), "OPTIONS, POST"),
        ("POST", "/ping", (405, "METHOD_NOT_ALLOWED"), "GET, OPTIONS"),
        ("POST", "/config/log_level", (405, "METHOD_NOT_ALLOWED"), "GET, OPTIONS, PUT"),
    ],
)
def test_trap_42_what_is_not_there_says_so(
    nsqd: Nsqd, method: str, path: str, expected: tuple[int, str], allow: str | None
) -> None:
    answer = nsqd.http(method, path)
    assert error(answer) == expected
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert answer.headers.get("allow") == allow


def test_trap_42_head_is_not_allowed(nsqd: Nsqd) -> None:
    assert nsqd.http("HEAD", "/ping").status == 405


@pytest.mark.parametrize(("method", "path"), [("POST", "/debug/freememory"), ("PUT", "/debug/setblockrate?rate=0")])
def test_trap_43_two_routes_succeed_with_500(nsqd: Nsqd, method: str, path: str) -> None:
    assert nsqd.http(method, path).status == 500


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("msg_timeout", b"60000000000"),
        ("log_level", b"2"),
        ("tcp_address", b"127.0.0.1:"),
        ("nsqlookupd_tcp_addresses", b"[]"),
        ("tls_required", b"0"),
        ("tls_min_version", b"771"),
        ("max_rdy_count", b"2500"),
        ("deflate", b"true"),
        ("tls_cert", b""),
    ],
)
def test_trap_44_options_are_shown_in_their_own_way(nsqd: Nsqd, option: str, value: bytes) -> None:
    answer = nsqd.http("GET", f"/config/{option}")
    assert answer.status == 200
    assert answer.body == value or (option == "tcp_address" and answer.body.startswith(value))


def test_trap_44_the_level_of_the_log_can_be_changed(nsqd: Nsqd) -> None:
    for word, number in ((b"DEBUG", b"1"), (b"info", b"2")):
        answer = nsqd.http("PUT", "/config/log_level", word)
        assert (answer.status, answer.body) == (200, number)
        assert nsqd.http("GET", "/config/log_level").body == number


@pytest.mark.parametrize(
    ("option", "body", "expected"),
    [
        ("log_level", b"", (413, "INVALID_VALUE")),
        ("nothing", b"", (413, "INVALID_VALUE")),
        ("log_level", b"warning", (400, "INVALID_VALUE")),
        ("log_level", b"info\n", (400, "INVALID_VALUE")),
        ("max_rdy_count", b"1", (400, "INVALID_OPTION")),
        ("nothing", b"1", (400, "INVALID_OPTION")),
        ("nsqlookupd_tcp_addresses", b"127.0.0.1:4160", (400, "INVALID_VALUE")),
    ],
)
def test_trap_44_what_cannot_be_changed_says_so(
    nsqd: Nsqd, option: str, body: bytes, expected: tuple[int, str]
) -> None:
    assert error(nsqd.http("PUT", f"/config/{option}", body)) == expected


@pytest.mark.parametrize("option", ["node_id", "lookupd_tcp_address", "version", "config", "verbose", "nothing"])
def test_trap_44_flags_are_no_options(nsqd: Nsqd, option: str) -> None:
    assert error(nsqd.http("GET", f"/config/{option}")) == (400, "INVALID_OPTION")


def test_info_has_the_real_ports(nsqd: Nsqd) -> None:
    info = json.loads(nsqd.http("GET", "/info").body)
    assert (info["tcp_port"], info["http_port"]) == (nsqd.tcp[1], nsqd.http_address[1])
    assert (info["version"], info["max_heartbeat_interval"]) == ("1.3.0", 60_000_000_000)


def test_messages_published_over_http_are_consumed_over_tcp(nsqd: Nsqd, topic: str) -> None:
    assert nsqd.http("POST", f"/pub?topic={topic}", b"plain").body == b"OK"
    assert nsqd.http("POST", f"/pub?topic={topic}&defer=200", b"deferred").body == b"OK"
    client = nsqd.connect()
    client.send(pub(topic, b"tcp"))
    assert consumed(nsqd, topic, 3) == [b"plain", b"tcp", b"deferred"]
