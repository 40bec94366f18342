"""nsq_stat with real servers."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from nsqtools.rates import HEADER
from tests.support.brokers import StartNsqd
from tests.support.certificates import make_certificates
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.tools import Tool, address, last_line, run_tool


def test_two_rows_of_three_polls(nsqd: Nsqd, topic: str) -> None:
    nsqd.connect().publish(topic, b"x")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    result = run_tool(
        "nsq_stat", f"--topic={topic}", "--channel=c", "--count=2", "--interval=300ms",
        f"--nsqd-http-address={address(nsqd.http_address)}",
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode() == HEADER + 2 * (
        "      0       0 |       1       1       0     0     0 |       0       0            1       0\n"
    )


def test_two_nodes_are_summed_and_one_that_dies_marks_the_row(start_nsqd: StartNsqd) -> None:
    nodes = [start_nsqd(), start_nsqd()]
    for node in nodes:
        node.connect().publish("t", b"x")
        node.post("/channel/create?topic=t&channel=c")
    places = [f"--nsqd-http-address={address(node.http_address)}" for node in nodes]
    with Tool("nsq_stat", "--topic=t", "--channel=c", "--interval=100ms", "--json", *places) as tool:
        eventually(lambda: tool.out.count(b"\n") >= 2)
        first = json.loads(tool.out.splitlines()[0])
        assert (first["depth"], first["message_count"], first["nodes"], first["missing"]) == (2, 2, 2, [])
        gone = address(nodes[1].http_address)
        nodes[1].kill()
        eventually(lambda: gone.encode() in tool.out)
        last = json.loads(tool.out.splitlines()[-1])
        assert (last["depth"], last["nodes"], last["missing"]) == (1, 1, [gone])
        tool.wait_for_log(f"ERROR: failed to get nsqd stats - {gone}")
        assert tool.stop(signal.SIGHUP) == 0


def test_nodes_are_found_by_nsqlookupd_even_when_one_of_them_is_down(tmp_path: Path) -> None:
    with socket.socket() as unused, Nsqlookupd() as lookupd:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        with Nsqd(tmp_path, f"lookupd-tcp-address={address(lookupd.tcp)}", "broadcast-address=127.0.0.1") as nsqd:
            nsqd.connect().publish("t", b"x")
            nsqd.post("/channel/create?topic=t&channel=c")
            eventually(lambda: lookupd.producers("t"))
            result = run_tool(
                "nsq_stat", "--topic=t", "--channel=c", "--count=1", "--interval=100ms",
                f"--lookupd-http-address={address(lookupd.http_address)}", f"--lookupd-http-address={nobody}",
            )  # fmt: skip
    assert result.returncode == 0
    assert f"ERROR: failed to get topic producers - {nobody}/lookup?topic=t: Connection refused" in str(result.stderr)
    assert result.stdout.splitlines()[-1].split()[3] == b"1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--topic and --channel are required"),
        (["--interval=0"], "--topic and --channel are required"),
        (["--topic=t", "--channel=c", "--interval=0"], "--interval should be positive"),
        (
            ["--topic=t", "--channel=c", "--http-client-connect-timeout=0"],
            "--http-client-connect-timeout should be positive",
        ),
        (
            ["--topic=t", "--channel=c", "--http-client-request-timeout=0"],
            "--http-client-request-timeout should be positive",
        ),
        (["--topic=t", "--channel=c", "--count=0"], "--count should be positive"),
        (["--topic=t", "--channel=c"], "--nsqd-http-address or --lookupd-http-address required"),
        (
            ["--topic=t", "--channel=c", "--nsqd-http-address=a:1", "--lookupd-http-address=a:1"],
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            ["--topic=t", "--channel=c", "--nsqd-http-address=http://a:1"],
            "--nsqd-http-address error - address should not contain scheme",
        ),
        (
            ["--topic=t", "--channel=c", "--lookupd-http-address=http://a:1"],
            "--lookupd-http-address error - address should not contain scheme",
        ),
        (["--topic=a b", "--channel=c", "--nsqd-http-address=httpd1:1"], "invalid topic name 'a b'"),
        (
            ["--topic=t", "--channel=c", "--nsqd-http-address=127.0.0.1:1"],
            "ERROR: failed to get nsqd stats - 127.0.0.1:1/stats?format=json&topic=t&channel=c&include_clients=false: "
            "Connection refused",
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_status_1(arguments: list[str], line: str) -> None:
    result = run_tool("nsq_stat", *arguments)
    assert (result.returncode, result.stdout) == (1, b"")
    assert last_line(result.stderr) == line
    assert result.stderr.count(b"\n") == 1


def test_a_channel_that_is_not_there(nsqd: Nsqd, topic: str) -> None:
    nsqd.connect().publish(topic, b"x")
    result = run_tool(
        "nsq_stat", f"--topic={topic}", "--channel=nope", f"--nsqd-http-address={address(nsqd.http_address)}"
    )
    assert result.returncode == 1
    assert last_line(result.stderr) == (f"ERROR: failed to find channel(nope) in stats metadata for topic({topic})")


def test_where_plain_http_is_refused_https_is_asked(tmp_path: Path, start_nsqd: StartNsqd) -> None:
    made = make_certificates(tmp_path)
    nsqd = start_nsqd(
        f"tls-cert={made.certificate}", f"tls-key={made.key}", "tls-required=true", "https-address=127.0.0.1:0"
    )
    trusting = {"SSL_CERT_FILE": str(made.authority)}
    published = run_tool(
        "to_nsq", "--topic=t", f"--nsqd-tcp-address={address(nsqd.tcp)}", "--producer-opt=tls_v1",
        f"--producer-opt=tls_root_ca_file,{made.authority}", input=b"one\ntwo",
    )  # fmt: skip
    assert published.returncode == 0, published.stderr
    place = f"--nsqd-http-address={address(nsqd.http_address)}"
    peeked = run_tool("nsq_tail", "--peek", "--topic=t", place, environ=trusting)
    assert (peeked.returncode, peeked.stdout) == (0, b"one\ntwo\n"), peeked.stderr
    shown = run_tool("nsq_stat", "--topic=t", "--channel=c", place, environ=trusting)
    assert last_line(shown.stderr) == "ERROR: failed to find channel(c) in stats metadata for topic(t)"
    doubting = run_tool("nsq_stat", "--topic=t", "--channel=c", place)
    assert doubting.returncode == 1
    assert "certificate verify failed" in last_line(doubting.stderr)
