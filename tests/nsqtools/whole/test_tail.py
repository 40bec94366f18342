"""nsq_tail and to_nsq with a real nsqd."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from nsqcommon.wire.frames import OK_FRAME
from tests.support.brokers import StartNsqd
from tests.support.lateness import lifetime_of
from tests.support.process import PYTHON, PYTHONPATH, Nsqd, Nsqlookupd, eventually
from tests.support.tools import LIMIT, Tool, address, last_line, run_tool


def places(nsqd: Nsqd) -> tuple[str, str]:
    return f"--nsqd-tcp-address={address(nsqd.tcp)}", f"--nsqd-http-address={address(nsqd.http_address)}"


def prepare(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    """Make a topic with a channel `c` and these messages."""
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    for body in bodies:
        nsqd.connect().publish(topic, body)


def left(nsqd: Nsqd, topic: str) -> tuple[int, int]:
    """Return depth and in flight of the channel."""
    channel = nsqd.channel(topic)
    return channel["depth"], channel["in_flight_count"]


def bodies_in(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    client = nsqd.connect()
    client.subscribe(topic, "check", ready=count)
    return client.bodies(count)


# nsq_tail


def test_bodies_are_printed_as_they_are(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"a\0\xff\nb", b"c")
    arguments = (f"--topic={topic}", "--channel=c", *places(nsqd))
    result = run_tool("nsq_tail", "-n=1", *arguments)
    assert (result.returncode, result.stdout) == (0, b"a\0\xff\nb\n")
    result = run_tool("nsq_tail", "-n=1", "--print-topic", *arguments)
    assert (result.returncode, result.stdout) == (0, f"{topic} | c\n".encode())
    assert f"Adding consumer for topic: {topic}" in result.stderr.decode()


def test_n_messages_are_finished_and_no_more(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, *(b"%d" % number for number in range(10)))
    result = run_tool("nsq_tail", f"--topic={topic}", "--channel=c", "-n=3", *places(nsqd))
    assert (result.returncode, result.stdout) == (0, b"0\n1\n2\n")
    eventually(lambda: left(nsqd, topic) == (7, 0))


def test_n_is_of_all_topics_together(nsqd: Nsqd, topic: str) -> None:
    topics = [f"{topic}-1", f"{topic}-2"]
    for it in topics:
        prepare(nsqd, it, b"x")
    result = run_tool("nsq_tail", *(f"--topic={it}" for it in topics), "--channel=c", "-n=2", *places(nsqd))
    assert (result.returncode, result.stdout) == (0, b"x\nx\n")


def test_an_object_for_each_message(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, b"\xff")
    result = run_tool("nsq_tail", f"--topic={topic}", "--channel=c", "-n=1", "--json", *places(nsqd))
    found = json.loads(result.stdout)
    assert (found["topic"], found["body_base64"], found["attempts"]) == (topic, "/w==", 1)
    assert found["nsqd"] == address(nsqd.tcp)


def test_when_the_reader_goes_nothing_is_lost(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic, *(b"%d" % number for number in range(20)))
    tail = subprocess.Popen(
        [PYTHON, "-P", "-m", "nsqtools", "nsq_tail", f"--topic={topic}", "--channel=c", *places(nsqd)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert tail.stdout is not None
    assert tail.stderr is not None
    shown = tail.stdout.readline()  # like `| head -1`, except for the pipe's buffer
    tail.stdout.close()
    nsqd.connect().publish(topic, b"more")
    assert tail.wait(LIMIT) == 141
    assert b"Traceback" not in tail.stderr.read()
    tail.stderr.close()
    assert shown == b"0\n"
    eventually(lambda: nsqd.channel(topic)["in_flight_count"] == 0)
    client = nsqd.connect()
    client.subscribe(topic, "c", ready=100)
    depth = nsqd.channel(topic)["depth"] + nsqd.channel(topic)["in_flight_count"]
    assert b"more" in client.bodies(depth)


def test_a_topic_without_a_channel_keeps_its_backlog(nsqd: Nsqd, topic: str) -> None:
    nsqd.connect().publish(topic, *(b"%d" % number for number in range(10)))
    arguments = (f"--topic={topic}", "-n=2", *places(nsqd))
    result = run_tool("nsq_tail", *arguments)
    assert (result.returncode, result.stdout) == (1, b"")
    assert last_line(result.stderr) == (
        f"topic {topic} on {address(nsqd.http_address)} has 10 messages and no channel: an ephemeral one would take "
        "them away; use --peek to see them, --channel to keep them, or --force"
    )
    assert nsqd.topic(topic)["depth"] == 10
    assert run_tool("nsq_tail", "--force", *arguments).stdout == b"0\n1\n"


def test_a_failed_look_for_channels_is_a_warning(nsqd: Nsqd, topic: str) -> None:
    nobody = "--nsqd-http-address=127.0.0.1:1"
    with Tool("nsq_tail", f"--topic={topic}", places(nsqd)[0], nobody) as tail:
        tail.wait_for_log("connected to nsqd")
        assert f"WARNING: cannot check whether topic {topic} already has a channel: 127.0.0.1:1/stats" in tail.log
        channels = eventually(lambda: (nsqd.topic(topic) or {}).get("channels"))
        assert re.fullmatch(r"tail\d{6}#ephemeral", channels[0]["channel_name"])
        with lifetime_of(tail.process.pid) as life:
            assert tail.stop(signal.SIGTERM) == 0
        assert life.seconds < 10  # a busy machine doesn't count
    eventually(lambda: nsqd.topic(topic)["channels"] == [])


def test_a_signal_requeues_what_is_not_shown(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic)
    with Tool("nsq_tail", f"--topic={topic}", "--channel=c", *places(nsqd)) as tail:
        tail.wait_for_log("connected to nsqd")
        nsqd.connect().publish(topic, b"x")
        eventually(lambda: tail.out == b"x\n")
        assert tail.stop(signal.SIGINT) == 0
        assert "clean close complete" in tail.log  # nsqd has answered its CLS
    assert left(nsqd, topic) == (0, 0)


def test_max_in_flight_may_be_written_as_go_reads_it(nsqd: Nsqd, topic: str) -> None:
    prepare(nsqd, topic)
    with Tool("nsq_tail", f"--topic={topic}", "--channel=c", "--max-in-flight=0x10", *places(nsqd)):
        eventually(lambda: [it["ready_count"] for it in nsqd.channel(topic)["clients"]] == [16])
        agent = nsqd.channel(topic)["clients"][0]["user_agent"]
        assert re.fullmatch(r"nsq_tail/1\.3\.0 nsqclient/\S+", agent)


def test_nsqlookupd_may_come_later(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        place = f"--lookupd-http-address={address(lookupd.http_address)}"
        options = (f"lookupd-tcp-address={address(lookupd.tcp)}", "broadcast-address=127.0.0.1")
        lookupd.stop()
        with Tool("nsq_tail", "--topic=t", "--channel=c", "--consumer-opt=lookupd_poll_interval,1s", place) as tail:
            tail.wait_for_log("error querying nsqlookupd")
            lookupd.start()
            with Nsqd(tmp_path, *options) as nsqd:
                nsqd.connect().publish("t", b"x")
                eventually(lambda: tail.out == b"x\n", timeout=LIMIT)
                assert tail.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        ([], 1, "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            ["--nsqd-tcp-address=a:1", "--lookupd-http-address=a:1"], 1,
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
        (["--nsqd-tcp-address=a:1"], 1, "--topic required"),
        (["--nsqd-tcp-address=a:1", "--topic=a,b"], 1, "invalid topic name 'a,b'"),
        (["--nsqd-tcp-address=a:1", "--topic=a", "--channel=b b"], 1, "invalid channel name 'b b'"),
        (["--nsqd-tcp-address=nowhere", "--topic=a"], 1, "missing port in address 'nowhere'"),
        (["--nsqd-tcp-address=a:1", "--topic=a", "--from=1"], 1, "--from only used with --peek"),
        (
            ["--nsqd-tcp-address=127.0.0.1:1", "--topic=a", "--channel=b"], 1,
            "dial 127.0.0.1:1: connection refused",
        ),
    ],
)  # fmt: skip
def test_nsq_tail_refuses_bad_arguments(arguments: list[str], status: int, line: str) -> None:
    result = run_tool("nsq_tail", *arguments)
    assert (result.returncode, result.stdout) == (status, b"")
    assert last_line(result.stderr) == line
    assert [it for it in result.stderr.decode().splitlines() if "Adding consumer" not in it][:-1] == []


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("foo", "invalid option foo"),
        ("max_in_flight,-1", "invalid max_in_flight ! -1 < 0"),
        ("deflate_level,10", "invalid deflate_level ! 10 > 9"),
    ],
)
def test_a_bad_client_option_is_a_bad_flag(option: str, reason: str) -> None:
    result = run_tool("nsq_tail", f"--consumer-opt={option}")
    assert result.returncode == 2
    line = f'nsq_tail: invalid value "{option}" for flag -consumer-opt: {reason}; see nsq_tail --help\n'
    assert result.stderr.decode() == line


# to_nsq


def test_records_are_published_to_every_nsqd(start_nsqd: StartNsqd) -> None:
    nodes = [start_nsqd(), start_nsqd()]
    result = run_tool("to_nsq", "--topic=t", *(places(node)[0] for node in nodes), input=b"a\n\nb")
    assert result.returncode == 0, result.stderr
    for node in nodes:
        assert bodies_in(node, "t", 2) == [b"a", b"b"]


def test_another_delimiter_and_records_longer_than_a_block(nsqd: Nsqd, topic: str) -> None:
    records = [b"x\ny", b"long" * 50_000, b"z"]
    result = run_tool("to_nsq", f"--topic={topic}", "--delimiter=,", places(nsqd)[0], input=b",".join(records))
    assert result.returncode == 0, result.stderr
    assert bodies_in(nsqd, topic, 3) == records


def test_so_many_records_a_second(nsqd: Nsqd, topic: str) -> None:
    with Tool("to_nsq", f"--topic={topic}", "--rate=5", places(nsqd)[0], stdin=True) as tool:
        tool.wait_for_log("connected to nsqd")
        began = time.monotonic()
        assert tool.process.stdin is not None
        tool.process.stdin.write(b"x\n" * 12)
        tool.process.stdin.close()
        assert tool.wait() == 0
        assert time.monotonic() - began > 2.2
        assert "Throttling messages rate to max:5/second" in tool.log
    assert nsqd.topic(topic)["depth"] == 12


def test_an_nsqd_that_goes_ends_it(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    with Tool("to_nsq", "--topic=t", places(nsqd)[0], stdin=True) as tool:
        tool.wait_for_log("connected to nsqd")
        nsqd.kill()
        tool.wait_for_log("connection closed by nsqd")  # a record that nsqd may have is tried for a minute
        assert tool.process.stdin is not None
        tool.process.stdin.write(b"x\n")
        tool.process.stdin.flush()
        assert tool.wait() == 1
        assert "Traceback" not in tool.log


def test_a_signal_ends_it_while_it_waits_for_input(nsqd: Nsqd, topic: str) -> None:
    with Tool("to_nsq", f"--topic={topic}", places(nsqd)[0], stdin=True) as tool:
        tool.wait_for_log("connected to nsqd")
        assert tool.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(("is_answered", "status"), [(True, 0), (False, 1)])
def test_a_signal_waits_for_the_answer_to_the_record_that_is_on_its_way(is_answered: bool, status: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as nsqd,
        Tool("to_nsq", "--topic=t", f"--nsqd-tcp-address={address(nsqd.getsockname())}", stdin=True) as tool,
    ):
        nsqd.settimeout(LIMIT)
        connection, _ = nsqd.accept()
        with connection:
            connection.settimeout(LIMIT)
            receive_until(connection, b"}")  # IDENTIFY
            connection.sendall(OK_FRAME)
            assert tool.process.stdin is not None
            tool.process.stdin.write(b"one\n")
            tool.process.stdin.flush()
            receive_until(connection, b"one")
            tool.signal(signal.SIGINT)
            if is_answered:
                connection.sendall(OK_FRAME)
            assert tool.wait() == status
    if not is_answered:
        assert tool.log.endswith("stopped while a record waited for its answer: it may or may not be published\n")
    assert "Traceback" not in tool.log


def receive_until(connection: socket.socket, end: bytes) -> None:
    said = b""
    while not said.endswith(end):
        more = connection.recv(65536)
        assert more, said
        said += more


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--topic required"),
        (["--topic=t", "--delimiter=\\n"], "--delimiter must be a single byte"),
        (["--topic=t", "--delimiter=ab"], "--delimiter must be a single byte"),
        (["--topic=t"], "--nsqd-tcp-address or --lookupd-http-address required"),
        (["--topic=bad topic", "--nsqd-tcp-address=a:1"], "invalid topic name 'bad topic'"),
        (["--topic=bad$t", "--nsqd-tcp-address=a:1"], "invalid topic name 'bad$t'"),
        (["--topic=t", "--nsqd-tcp-address=127.0.0.1:1"], "dial 127.0.0.1:1: connection refused"),
    ],
)
def test_what_to_nsq_refuses(arguments: list[str], line: str) -> None:
    result = run_tool("to_nsq", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (1, b"", 1)
    assert last_line(result.stderr) == line


def test_a_record_that_nsqd_refuses(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-msg-size=10")
    result = run_tool("to_nsq", "--topic=t", places(nsqd)[0], input=b"fine\nmuch too long\nnever read\n")
    assert result.returncode == 1
    assert last_line(result.stderr) == "E_BAD_MESSAGE PUB message too big 13 > 10"
    assert bodies_in(nsqd, "t", 1) == [b"fine"]
