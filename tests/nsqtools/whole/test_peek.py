"""nsq_tail --peek shows the messages in a topic's log, and changes nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.tools import address, last_line, run_tool


def peek(nsqd: Nsqd, topic: str, *arguments: str) -> bytes:
    place = f"--nsqd-http-address={address(nsqd.http_address)}"
    result = run_tool("nsq_tail", "--peek", f"--topic={topic}", place, *arguments)
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    nsqd.connect().publish(topic, *bodies)
    eventually(lambda: nsqd.http("GET", f"/topic/log?topic={topic}").json["next"] >= len(bodies))


def test_peeking_shows_what_is_there_and_changes_nothing(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"a\0\n\xff", b"b", b"c")
    before = nsqd.topic(topic)
    assert peek(nsqd, topic) == b"a\0\n\xff\nb\nc\n"
    assert peek(nsqd, topic, "--print-topic", "-n", "1") == f"{topic} | c\n".encode()
    assert nsqd.topic(topic) == before
    assert (before["channels"], before["depth"]) == ([], 3)


def test_the_last_n_or_the_first_n_from_a_place_on(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(10)))
    assert peek(nsqd, topic, "-n=3") == b"7\n8\n9\n"
    assert peek(nsqd, topic, "-n=3", "--from=earliest") == b"0\n1\n2\n"
    assert peek(nsqd, topic, "-n=3", "--from=4") == b"4\n5\n6\n"
    assert peek(nsqd, topic, "--from=8") == b"8\n9\n"
    assert peek(nsqd, topic, "--from=latest") == b""
    assert peek(nsqd, topic, "--from=1h").count(b"\n") == 10


def test_a_time_is_a_place(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"before")
    stored = json.loads(peek(nsqd, topic, "--json"))["timestamp"]
    later = datetime.fromtimestamp(stored / 1e9 + 0.001, UTC).isoformat().replace("+00:00", "Z")
    eventually(lambda: datetime.now(UTC).timestamp() > stored / 1e9 + 0.002)
    nsqd.connect().publish(topic, b"after")
    eventually(lambda: nsqd.http("GET", f"/topic/log?topic={topic}").json["next"] == 2)
    assert peek(nsqd, topic, f"--from={later}") == b"after\n"


def test_an_object_for_each_message(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, "é".encode(), b"\xff")
    first, second = map(json.loads, peek(nsqd, topic, "--json").splitlines())
    assert (first["topic"], first["sequence"], first["body"]) == (topic, 0, "é")
    assert first["nsqd"] == address(nsqd.http_address)
    assert len(first["id"]) == 16
    assert (second["sequence"], second["body_base64"]) == (1, "/w==")


def test_several_nodes_are_shown_in_the_order_of_publication(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        options = (f"lookupd-tcp-address={address(lookupd.tcp)}", "broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "a", *options) as one, Nsqd(tmp_path / "b", *options) as two:
            for number in range(6):
                (one, two)[number % 2].connect().publish("t", b"%d" % number)
            for node in (one, two):
                eventually(lambda node=node: node.http("GET", "/topic/log?topic=t").json["next"] == 3)
            eventually(lambda: len(lookupd.producers("t")) == 2)
            place = f"--lookupd-http-address={address(lookupd.http_address)}"
            result = run_tool("nsq_tail", "--peek", "--topic=t", place)
            assert (result.returncode, result.stdout) == (0, b"0\n1\n2\n3\n4\n5\n")
            assert run_tool("nsq_tail", "--peek", "--topic=t", "-n=2", place).stdout == b"4\n5\n"
            result = run_tool("nsq_tail", "--peek", "--topic=t", "--from=1", place)
            assert (result.returncode, last_line(result.stderr)) == (
                1, "a sequence is a position on one nsqd, but 2 have the topic: use --nsqd-http-address",
            )  # fmt: skip


def test_more_than_fits_into_one_page(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd()
    for _ in range(6):
        nsqd.connect().publish("t", b"x" * 1_000_000, b"y" * 1_000_000)
    eventually(lambda: nsqd.http("GET", "/topic/log?topic=t").json["next"] == 12)
    assert peek(nsqd, "t") == (b"x" * 1_000_000 + b"\n" + b"y" * 1_000_000 + b"\n") * 6


def test_peeking_reports_damaged_messages(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-bytes-per-file=1000")
    for n in range(6):
        publish(nsqd, "t", b"%d" % n * 400)
    eventually(lambda: nsqd.http("GET", "/topic/log?topic=t").json["next"] == 6)
    segment = sorted(nsqd.data_path.glob("topics/*/*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data)
    place = f"--nsqd-http-address={address(nsqd.http_address)}"
    result = run_tool("nsq_tail", "--peek", "--topic=t", place)
    assert (result.returncode, result.stdout.count(b"\n")) == (0, 5)
    assert last_line(result.stderr) == f"t on {address(nsqd.http_address)}: messages 3 to 3 cannot be read"


@pytest.mark.parametrize(
    ("topic", "line"),
    [
        ("nope", "nope on {}: there is no such topic"),
        ("e#ephemeral", "e#ephemeral on {}: an ephemeral topic has no history"),
    ],
)
def test_topics_that_cannot_be_peeked_into_are_refused(nsqd: Nsqd, topic: str, line: str) -> None:
    nsqd.post("/topic/create?topic=e%23ephemeral")
    place = address(nsqd.http_address)
    result = run_tool("nsq_tail", "--peek", f"--topic={topic}", f"--nsqd-http-address={place}")
    assert (result.returncode, result.stdout) == (1, b"")
    assert last_line(result.stderr) == line.format(place)
