"""Flags of NSQ whose effect no other test shows. tests/project lists which test shows which flag."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import pack

import pytest

from nsqcommon.wire.commands import auth, identify, mpub, pub, rdy
from tests.support.brokers import StartNsqd
from tests.support.client import TIMEOUT, Refused, open_socket
from tests.support.lateness import is_within
from tests.support.process import Nsqd, Nsqlookupd, eventually, launch, run_to_end


def refusal(nsqd: Nsqd, *sent: bytes) -> str:
    client = nsqd.connect()
    with pytest.raises(Refused) as refused:
        client.ask(*sent)
    assert client.closes()
    return str(refused.value)


def asking(**fields: object) -> bytes:
    return identify(json.dumps(fields).encode())


# Limits of clients


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Run an nsqd on which every limit of clients differs from NSQ's default."""
    options = (
        "max-rdy-count=7",
        "max-msg-timeout=2s",
        "msg-timeout=1500ms",
        "max-heartbeat-interval=3s",
        "max-output-buffer-size=100",
        "min-output-buffer-timeout=50ms",
        "max-output-buffer-timeout=1s",
        "output-buffer-timeout=70ms",
        "max-deflate-level=3",
        "deflate=false",
        "snappy=false",
        "topology-region=region",
        "topology-zone=zone",
        "max-msg-size=10",
        "max-body-size=100",
    )
    with Nsqd(tmp_path_factory.mktemp("strict"), *options) as nsqd:
        yield nsqd


def test_identify_tells_what_the_flags_say(strict: Nsqd) -> None:
    answer = strict.connect().identify(feature_negotiation=True, snappy=True, deflate=True, tls_v1=True)
    assert answer == {
        "max_rdy_count": 7,
        "version": "1.3.0",
        "max_msg_timeout": 2000,
        "msg_timeout": 1500,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": 3,
        "max_deflate_level": 3,
        "snappy": False,
        "sample_rate": 0,
        "auth_required": False,
        "output_buffer_size": 16384,
        "output_buffer_timeout": 70,
        "topology_region": "region",
        "topology_zone": "zone",
    }


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"heartbeat_interval": 3001}, "heartbeat interval (3001) is invalid"),
        ({"output_buffer_size": 101}, "output buffer size (101) is invalid"),
        ({"output_buffer_timeout": 49}, "output buffer timeout (49) is invalid"),
        ({"output_buffer_timeout": 1001}, "output buffer timeout (1001) is invalid"),
        ({"msg_timeout": 2001}, "msg timeout (2001) is invalid"),
    ],
)
def test_more_than_a_flag_allows_is_refused(strict: Nsqd, fields: dict[str, int], text: str) -> None:
    assert refusal(strict, asking(**fields)) == f"E_BAD_BODY IDENTIFY {text}"
    most = {name: value - 1 if value != 49 else 50 for name, value in fields.items()}
    assert strict.connect().identify(**most) == b"OK"


def test_the_highest_ready_count(strict: Nsqd, topic: str) -> None:
    client = strict.connect()
    client.subscribe(topic, ready=7)
    client.send(rdy(8))
    assert client.error() == b"E_INVALID RDY count 8 out of range 0-7"


def test_the_largest_message_and_body(strict: Nsqd) -> None:
    assert strict.connect().ask(pub("t", b"x" * 10)) == b"OK"
    assert refusal(strict, pub("t", b"x" * 11)) == "E_BAD_MESSAGE PUB message too big 11 > 10"
    assert strict.http("POST", "/pub?topic=t", b"x" * 11).json == {"message": "MSG_TOO_BIG"}
    assert refusal(strict, mpub("t", [b"x" * 11])) == "E_BAD_MESSAGE MPUB message too big 11 > 10"
    assert refusal(strict, b"MPUB t\n" + pack(">i", 101)) == "E_BAD_BODY MPUB body too big 101 > 100"
    assert strict.http("POST", "/mpub?topic=t", b"x" * 101).json == {"message": "BODY_TOO_BIG"}
    assert refusal(strict, b"IDENTIFY\n" + pack(">i", 101)) == "E_BAD_BODY IDENTIFY body too big 101 > 100"


def test_the_largest_body_of_identify_and_auth(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-identify-size=200")
    assert nsqd.connect().identify(client_id="x" * 100) == b"OK"
    assert refusal(nsqd, b"IDENTIFY\n" + pack(">i", 201)) == "E_BAD_BODY IDENTIFY body too big 201 > 200"
    assert refusal(nsqd, b"AUTH\n" + pack(">i", 201)) == "E_BAD_BODY AUTH body too big 201 > 200"


def test_a_message_comes_back_after_the_default_timeout(strict: Nsqd, topic: str) -> None:
    consumer = strict.connect()
    consumer.subscribe(topic, ready=1)
    began = time.monotonic()
    strict.connect().publish(topic, b"x")
    assert consumer.message().attempts == 1
    assert consumer.message().attempts == 2
    assert time.monotonic() - began >= 1.5


def test_touch_reaches_the_longest_timeout_at_most(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("msg-timeout=3s", "max-msg-timeout=3500ms")
    consumer = nsqd.connect()
    consumer.subscribe("t", ready=1)
    began = time.monotonic()
    nsqd.connect().publish("t", b"x")
    message = consumer.message()
    for _ in range(6):
        time.sleep(0.5)  # a TOUCH now and then, each before the timeout
        consumer.send(b"TOUCH " + message.id + b"\n")
    assert consumer.message().attempts == 2
    assert time.monotonic() - began >= 3.5


def test_compression_is_granted_up_to_the_highest_level(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-deflate-level=3")
    answer = nsqd.connect().identify(feature_negotiation=True, deflate=True, deflate_level=9)
    assert (answer["deflate"], answer["deflate_level"]) == (True, 3)
    assert nsqd.connect().identify(feature_negotiation=True, snappy=True)["snappy"] is True


# The node and its files


def test_the_node_id_is_in_every_message_id(start_nsqd: StartNsqd) -> None:
    found = set()
    for node_id in (3, 1023):
        nsqd = start_nsqd(f"node-id={node_id}")
        consumer = nsqd.connect()
        consumer.subscribe("t", ready=1)
        consumer.publish("t", b"x")
        found.add(int(consumer.message().id, 16) >> 54)
        assert f"ID: {node_id}" in nsqd.log
    assert found == {3, 1023}


def test_without_a_data_path_it_is_the_current_folder(tmp_path: Path) -> None:
    with launch("--tcp-address=127.0.0.1:0", "--http-address=", folder=tmp_path) as nsqd:
        try:
            assert eventually(lambda: (tmp_path / "node.json").exists(), 30)
        finally:
            nsqd.terminate()
            assert "HTTP: listening" not in nsqd.communicate(timeout=20)[1]


def test_a_log_begins_a_new_file_when_it_has_grown(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-bytes-per-file=10000")
    with nsqd.connect() as client:
        for _ in range(10):
            client.publish("t", b"x" * 5000)
    files = [it.stat().st_size for it in (nsqd.data_path / "topics" / "t.t").glob("*.log")]
    assert len(files) >= 5
    assert max(files) < 20_000


def test_what_has_no_effect_is_accepted(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd(
        "verbose",
        "worker-id=true",
        "queue-scan-worker-pool-max=1",
        "queue-scan-selection-count=1",
        "enable-experiment=x",
    )
    nsqd.connect().publish("t", b"x")
    assert nsqd.http("GET", "/config/queue_scan_selection_count").body == b"1"


# nsqlookupd, statsd and others


def test_the_broadcast_address_and_ports_are_what_is_registered(start_nsqd: StartNsqd) -> None:
    with Nsqlookupd() as lookupd:
        nsqd = start_nsqd(
            f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}",
            "broadcast-address=queue.example",
            "broadcast-tcp-port=14150",
            "broadcast-http-port=14151",
        )
        (node,) = eventually(lambda: lookupd.get("/nodes")["producers"])
        assert (node["broadcast_address"], node["tcp_port"], node["http_port"]) == ("queue.example", 14150, 14151)
        info = nsqd.http("GET", "/info").json
        assert info["broadcast_address"] == "queue.example"
        assert (info["tcp_port"], info["http_port"]) == (nsqd.tcp[1], nsqd.http_address[1])


def host_name_is_here() -> bool:
    """Return whether the host name resolves to the address that is listened on: it does not on every machine."""
    try:
        return "127.0.0.1" in {it[4][0] for it in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return False


def test_without_them_the_real_ports_are_registered(start_nsqd: StartNsqd) -> None:
    with Nsqlookupd() as lookupd:
        nsqd = start_nsqd(f"lookupd-tcp-address=127.0.0.1:{lookupd.tcp[1]}")
        (node,) = eventually(lambda: lookupd.get("/nodes")["producers"])
        assert node["broadcast_address"] == (socket.gethostname() if host_name_is_here() else "127.0.0.1")
        assert (node["tcp_port"], node["http_port"]) == (nsqd.tcp[1], nsqd.http_address[1])


def refused_after(nsqd: Nsqd) -> float:
    """Return after how many seconds an AUTH is refused, which are at least those that it was given."""
    began = time.monotonic()
    assert refusal(nsqd, auth(b"secret")) == "E_AUTH_FAILED AUTH failed"
    took = time.monotonic() - began
    assert took > 0.25
    return took


def test_an_authorization_server_that_is_silent_is_waited_for_so_long_only(start_nsqd: StartNsqd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        nsqd = start_nsqd(f"auth-http-address=127.0.0.1:{port}", "http-client-request-timeout=300ms")
        assert is_within(4, lambda: refused_after(nsqd))


def test_an_authorization_server_that_does_not_accept_is_waited_for_so_long_only(start_nsqd: StartNsqd) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(2):  # two connections fit into a backlog of 0, and the next one waits
            caller = waiting.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        nsqd = start_nsqd(f"auth-http-address=127.0.0.1:{full.getsockname()[1]}", "http-client-connect-timeout=300ms")
        assert is_within(4, lambda: refused_after(nsqd))


@pytest.mark.parametrize("told", [True, False])
def test_statsd_is_told_of_memory_and_of_what_is_ephemeral_unless_told_otherwise(
    start_nsqd: StartNsqd, told: bool
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind(("127.0.0.1", 0))
        sink.settimeout(TIMEOUT)
        nsqd = start_nsqd(
            f"statsd-address=127.0.0.1:{sink.getsockname()[1]}",
            "statsd-interval=500ms",
            "statsd-udp-packet-size=60000",
            "statsd-prefix=",
            f"statsd-mem-stats={str(told).lower()}",
            f"statsd-exclude-ephemeral={str(not told).lower()}",
        )
        nsqd.post("/topic/create?topic=lasting")
        nsqd.post("/topic/create?topic=gone%23ephemeral")
        lines = ""
        while "topic.lasting.depth" not in lines:
            lines = sink.recv(65536).decode()
    assert ("mem.heap_objects" in lines) is told
    assert ("topic.gone#ephemeral.depth" in lines) is told


# The file


SAMPLE = """
log_level = "debug"
log_prefix = "[sample] "
id = 5
tcp_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
https_address = ""
broadcast_address = "sample.example"
broadcast_tcp_port = 1
broadcast_http_port = 2
nsqlookupd_tcp_addresses = []
auth_http_addresses = ""
auth_http_request_method = "post"
http_client_connect_timeout = "2s"
http_client_request_timeout = 5000
topology_region = "r"
topology_zone = "z"
mem_queue_size = 10000
max_bytes_per_file = 104857600
sync_every = "2500"
sync_timeout = "2s"
queue_scan_worker_pool_max = 4
queue_scan_selection_count = 20
msg_timeout = "60s"
max_msg_timeout = "15m"
max_msg_size = 1024768
max_body_size = 5123840
max_req_timeout = "1h"
max_heartbeat_interval = "60s"
max_rdy_count = 2500
max_output_buffer_size = 65536
max_output_buffer_timeout = "1s"
min_output_buffer_timeout = "25ms"
output_buffer_timeout = 250
max_channel_consumers = 0
statsd_address = ""
statsd_prefix = "nsq.%s"
statsd_interval = "60s"
statsd_mem_stats = true
statsd_udp_packet_size = 508
statsd_exclude_ephemeral = "false"
e2e_processing_latency_percentiles = [1.0, 0.99, 0.95]
e2e_processing_latency_window_time = "10m"
tls_cert = ""
tls_key = ""
tls_client_auth_policy = ""
tls_root_ca_file = ""
tls_required = false
tls_min_version = ""
deflate = true
max_deflate_level = 6
snappy = true
enable_experiment = ["topology-aware-consumption"]
"""


def test_unfinished_bodies_share_a_bound(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-unfinished-bytes=1000")
    first, second = nsqd.connect(), nsqd.connect()
    half = b"PUB t\n\0\0\4\0" + b"x" * 600
    first.send(pub("t", b"whole"), half)
    assert first.response() == b"OK"  # so the second half has come, too
    second.send(half)
    assert first.error() == b"E_BAD_MESSAGE PUB failed to read message body"
    assert first.closes()
    second.send(b"x" * 424)
    assert second.response() == b"OK"


@pytest.mark.parametrize("head", [b"Content-Length: 700\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n2bc\r\n"])
def test_unfinished_bodies_of_http_count_as_well(start_nsqd: StartNsqd, head: bytes) -> None:
    nsqd = start_nsqd("max-unfinished-bytes=1000")
    half = b"POST /mpub?topic=t HTTP/1.1\r\nHost: x\r\n" + head + b"x" * 600
    with ExitStack() as stack:
        first, second = (stack.enter_context(open_socket(nsqd.http_address)) for _ in range(2))
        for sock in (first, second):
            sock.settimeout(TIMEOUT)
            sock.sendall(half)
        readable, _, _ = select.select((first, second), (), (), TIMEOUT)
        # Either may be first.
        (given_up,) = readable
        (other,) = {first, second} - {given_up}
        try:
            answer = given_up.recv(1000)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or b" 503 " in answer
        other.sendall(b"x" * 100 + (b"\r\n0\r\n\r\n" if b"chunked" in head else b""))
        assert other.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_a_file_with_every_key_of_nsq(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text(SAMPLE)
    nsqd = start_nsqd(f"config={config}")
    assert "unknown key" not in nsqd.log
    assert nsqd.log.splitlines()[-1].startswith("[sample] ")
    shown = {
        "id": b"5",
        "max_msg_size": b"1024768",
        "max_output_buffer_timeout": b"1000000000",
        "output_buffer_timeout": b"250000000",
        "http_client_request_timeout": b"5000000000",
        "sync_every": b"2500",
        "statsd_exclude_ephemeral": b"false",
        "e2e_processing_latency_percentiles": b"[1,0.99,0.95]",
        "enable_experiment": b'["topology-aware-consumption"]',
        "broadcast_address": b"sample.example",
        "broadcast_http_port": b"2",
        "tls_min_version": b"771",
    }
    assert {key: nsqd.http("GET", f"/config/{key}").body for key in shown} == shown


def test_trap_62_the_hundredth_percentile_works(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("e2e-processing-latency-percentile=1.0")
    consumer = nsqd.connect()
    consumer.subscribe("t", ready=1)
    consumer.publish("t", b"x")
    consumer.finish(consumer.message())
    consumer.in_step()
    latency = nsqd.channel("t")["e2e_processing_latency"]
    assert latency["count"] == 1
    assert latency["percentiles"][0]["quantile"] == 1


def test_percentiles_stand_in_the_order_of_nsq(start_nsqd: StartNsqd) -> None:
    """If flags set them, the greatest comes first, whatever their order; readers of the text go by position."""
    nsqd = start_nsqd("e2e-processing-latency-percentile=0.5,0.95", "e2e-processing-latency-percentile=0.99")
    with nsqd.connect() as consumer:
        consumer.subscribe("t", ready=1)
        consumer.publish("t", *[b"x"] * 3)
        for _ in range(3):
            consumer.finish(consumer.message())
        consumer.in_step()
        topic = nsqd.topic("t")
        text = nsqd.http("GET", "/stats?topic=t").body.decode()
    assert nsqd.http("GET", "/config/e2e_processing_latency_percentiles").body == b"[0.99,0.95,0.5]"
    for described in (topic, *topic["channels"]):
        percentiles = described["e2e_processing_latency"]["percentiles"]
        assert [it["quantile"] for it in percentiles] == [0.99, 0.95, 0.5]
        values = [it["value"] for it in percentiles]
        assert values == sorted(values, reverse=True)
    assert text.count("e2e%: ") == 2
    assert all(line.partition("e2e%: ")[2].count(", ") == 2 for line in text.splitlines() if "e2e%: " in line)


# The process and its log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_stop_it(start_nsqd: StartNsqd, number: signal.Signals) -> None:
    nsqd = start_nsqd("statsd-address=127.0.0.1:9")
    assert nsqd.stop(number) == 0
    lines = [re.sub(r"^.*?INFO: ", "", line) for line in nsqd.log.splitlines()]
    (_, tcp_port), (_, http_port) = nsqd.tcp, nsqd.http_address
    said = lines[lines.index(f"TCP: closing 127.0.0.1:{tcp_port}") :]
    assert said[:4] == [
        f"TCP: closing 127.0.0.1:{tcp_port}",
        f"HTTP: closing 127.0.0.1:{http_port}",
        "NSQ: closing topics",
        "NSQ: stopping subsystems",
    ]
    assert sorted(said[4:-2]) == ["LOOKUP: closing", "STATSD: closing"]
    assert said[-2:] == ["NSQ: bye", "(end of log)"]


def test_signals_that_do_not(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    nsqd.send_signal(signal.SIGUSR2)
    assert nsqd.http("GET", "/ping").status == 200
    assert nsqd.stop(signal.SIGQUIT) == 2
    assert "Current thread" in nsqd.log


def test_the_life_of_a_client_in_the_log(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("log-prefix=[a] ", "log-level=INFO")
    with nsqd.connect() as client:
        client.identify(client_id="me")
        client.subscribe("t", "c")
        host, port = client.sock.getsockname()
        client.send(b"FIN " + b"f" * 16 + b"\n", b"nonsense\n")
        client.error()
        client.error()
    nsqd.post("/channel/delete?topic=t&channel=c")
    nsqd.post("/topic/delete?topic=t")
    assert nsqd.stop() == 0
    peer = f"{host}:{port}"
    expected = [
        f"INFO: TCP: new client({peer})",
        f"INFO: CLIENT({peer}): desired protocol magic '  V2'",
        f'INFO: [{peer}] IDENTIFY: {{"client_id": "me"}}',
        "INFO: TOPIC(t): created",
        "INFO: TOPIC(t): new channel(c)",
        f"ERROR: [{peer}] - E_FIN_FAILED FIN ffffffffffffffff failed ID not in flight",
        f"ERROR: [{peer}] - E_INVALID invalid command nonsense",
        f"INFO: PROTOCOL(V2): [{peer}] exiting ioloop",
        "INFO: TOPIC(t): deleting channel c",
        "INFO: TOPIC(t): deleting",
    ]
    log = nsqd.log.splitlines()[:-1]
    assert all(re.match(r"\[a\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} [A-Z]+: ", line) for line in log)
    said = [line.split(" ", 3)[3] for line in log]
    assert [line for line in said if line in expected] == expected
    assert any(
        re.fullmatch(r"INFO: 200 POST /topic/delete\?topic=t \(127\.0\.0\.1:\d+\) [\d.]+[µm]?s", it) for it in said
    )
    assert not any("/pub" in line for line in said)


@pytest.mark.parametrize(
    ("sent", "cause"),
    [(b"x" * 16385, "line too long"), (identify(b'{"heartbeat_interval":1000}'), "i/o timeout")],
)
def test_why_a_client_was_cut_off_is_in_the_log(start_nsqd: StartNsqd, sent: bytes, cause: str) -> None:
    nsqd = start_nsqd()
    client = nsqd.connect()
    client.send(sent)
    client.rest()
    assert eventually(lambda: re.search(rf"ERROR: client\(\S+\) - failed to read command - {cause}", nsqd.log))


def test_the_level_of_the_log_changes_while_it_runs(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    assert nsqd.http("PUT", "/config/log_level", b"error").status == 200
    nsqd.post("/topic/create?topic=silent")
    nsqd.connect().send(b"nonsense\n")
    assert eventually(lambda: "E_INVALID" in nsqd.log)
    assert nsqd.http("PUT", "/config/log_level", b"INFO").status == 200
    nsqd.post("/topic/create?topic=told")
    assert nsqd.http("PUT", "/config/log_level", b"fatal").status == 200
    nsqd.connect().send(b"more-nonsense\n")
    nsqd.stop()
    assert "TOPIC(silent)" not in nsqd.log
    assert "TOPIC(told): created" in nsqd.log
    assert "more-nonsense" not in nsqd.log


def test_a_magic_that_nobody_knows(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    client = nsqd.connect(magic=b"  V9")
    assert client.error() == b"E_BAD_PROTOCOL"
    assert client.closes()


def test_a_word_in_the_file_that_nobody_knows(tmp_path: Path) -> None:
    config = tmp_path / "nsqd.toml"
    config.write_text('tls_required = "sometimes"\n')
    assert refused(f"--config={config}") == "failed parsing tls_required sometimes"
    config.write_text('tls_min_version = "tls2"\n')
    assert refused(f"--config={config}") == "failed parsing tls_min_version tls2"
    config.write_text('log_level = "loud"\n')
    assert refused(f"--config={config}") == "failed parsing log_level loud"


def refused(*arguments: str) -> str:
    done = run_to_end(*arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line.partition(" FATAL: ")[2]
