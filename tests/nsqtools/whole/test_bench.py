"""nsq_bench with a real nsqd: its output, not its speed."""

from __future__ import annotations

import json
import re
import signal
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.process import Nsqd, eventually
from tests.support.tools import Tool, address, last_line, run_tool


def bench(nsqd: Nsqd, topic: str, *arguments: str) -> tuple[str, ...]:
    place = f"--nsqd-tcp-address={address(nsqd.tcp)}"
    return place, f"--topic={topic}", "--connections=1", "--runfor=500ms", *arguments


def test_both_ways_at_a_rate(nsqd: Nsqd, topic: str) -> None:
    result = run_tool("nsq_bench", *bench(nsqd, topic, "--rate=200", "--batch-size=1", "--size=100", "--json"))
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert 0 < found["publish"]["messages"] <= 300
    assert found["consume"]["messages"] == found["publish"]["messages"]
    assert found["publish"]["round_trip_ms"]["p50"] > 0
    assert found["consume"]["on_their_way_ms"]["p99"] > 0
    assert nsqd.channel(topic, "ch")["depth"] == 0


def test_publishing_in_batches_and_then_consuming(nsqd: Nsqd, topic: str) -> None:
    result = run_tool("nsq_bench", *bench(nsqd, topic, "--mode=pub", "--batch-size=20", "--rate=1000", "--quiet"))
    assert result.returncode == 0, result.stderr
    published = int(re.match(rb"publish: ([\d,]+) messages in 0\.\d s - ", result.stdout)[1].replace(b",", b""))  # type: ignore[index]
    assert published % 20 == 0
    assert nsqd.topic(topic)["depth"] == published
    assert b"/s  " not in result.stderr
    result = run_tool("nsq_bench", *bench(nsqd, topic, "--mode=sub", "--json", "--runfor=2s"))
    found = json.loads(result.stdout)
    assert (found["publish"], found["consume"]["messages"]) == (None, published)


def test_it_is_shown_how_it_goes_and_a_signal_ends_it(nsqd: Nsqd, topic: str) -> None:
    with Tool("nsq_bench", *bench(nsqd, topic, "--rate=100", "--runfor=1h")) as tool:
        eventually(lambda: re.search(r"published +\d+/s  consumed +\d+/s  latency p50 [\d.]+ ms\n", tool.log))
        assert tool.stop(signal.SIGINT) == 0
        assert tool.out.startswith(b"publish: ")


def test_a_signal_ends_it_while_it_waits_for_its_rate(nsqd: Nsqd, topic: str) -> None:
    with Tool("nsq_bench", *bench(nsqd, topic, "--rate=1", "--batch-size=200", "--runfor=1h", "--quiet")) as tool:
        eventually(lambda: (nsqd.topic(topic) or {}).get("message_count"))  # the next batch is due in 200 s
        assert tool.stop(signal.SIGINT) == 0
        assert tool.out.startswith(b"publish: 200 messages")


def test_several_begin_together(nsqd: Nsqd, topic: str) -> None:
    begin = datetime.now(UTC) + timedelta(seconds=3)
    result = run_tool(
        "nsq_bench", *bench(nsqd, topic, f"--deadline={begin:%Y-%m-%d %H:%M:%S}", "--rate=10", "--mode=pub")
    )
    assert result.returncode == 0
    assert datetime.now(UTC) >= begin.replace(microsecond=0) + timedelta(milliseconds=500)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--topic=a b"], "invalid topic name 'a b'"),
        (["--size=0"], "--size should be positive"),
        (["--batch-size=0"], "--batch-size should be positive"),
        (["--deadline=noon"], "--deadline should be 'YYYY-MM-DD HH:MM:SS'"),
        (["--nsqd-tcp-address=127.0.0.1:1"], "dial 127.0.0.1:1: connection refused"),
    ],
)
def test_nsq_bench_refuses_bad_arguments(arguments: list[str], line: str) -> None:
    result = run_tool("nsq_bench", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (1, b"", 1)
    assert last_line(result.stderr) == line
