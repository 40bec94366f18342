"""nsq_replay between real nsqd."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.tools import Tool, address, last_line, run_tool


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        nsqd.connect().publish(topic, body)
    eventually(lambda: nsqd.http("GET", f"/topic/log?topic={topic}").json["next"] >= len(bodies))


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def stored(nsqd: Nsqd, topic: str) -> list[bytes]:
    place = f"--nsqd-http-address={address(nsqd.http_address)}"
    return run_tool("nsq_tail", "--peek", f"--topic={topic}", place).stdout.splitlines()


def source(nsqd: Nsqd, topic: str) -> tuple[str, ...]:
    return f"--topic={topic}", f"--nsqd-http-address={address(nsqd.http_address)}"


def replay(nsqd: Nsqd, topic: str, *arguments: str, status: int = 0) -> Any:
    result = run_tool("nsq_replay", *source(nsqd, topic), "--json", *arguments)
    assert result.returncode == status, result.stderr.decode()
    return json.loads(result.stdout)


def test_a_range_of_sequences_into_another_topic(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *numbers(10))
    summary = replay(nsqd, topic, f"--destination-topic={topic}-2", "--from=3", "--to=7")
    assert (summary["planned"], summary["published"], summary["unreadable"], summary["complete"]) == (4, 4, 0, True)
    node = summary["nodes"][0]
    assert (node["from"], node["next"], node["to"]) == (3, 7, 7)
    eventually(lambda: stored(nsqd, f"{topic}-2") == numbers(4, 3))


def test_an_edited_copy_is_left_out(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c")
    publish(nsqd, topic, *numbers(2))
    for sequence in (0, 2):
        nsqd.post(f"/channel/edit?topic={topic}&channel=c&sequence={sequence}", b"edited")
    summary = replay(nsqd, topic, f"--destination-topic={topic}-2")
    assert (summary["published"], summary["unreadable"], summary["complete"]) == (2, 0, True)
    eventually(lambda: stored(nsqd, f"{topic}-2") == numbers(2))
    assert stored(nsqd, topic) == numbers(2)


def test_into_the_same_topic_it_comes_to_an_end(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *numbers(5))
    assert replay(nsqd, topic, f"--destination-topic={topic}", "--batch-size=2")["published"] == 5
    eventually(lambda: stored(nsqd, topic) == numbers(5) * 2)


def test_to_another_cluster_and_by_time(nsqd: Nsqd, topic: str, start_nsqd: StartNsqd) -> None:
    elsewhere = start_nsqd()
    publish(nsqd, topic, *numbers(3))
    there = f"--destination-nsqd-tcp-address={address(elsewhere.tcp)}"
    assert replay(nsqd, topic, "--destination-topic=t", there, "--from=1h", "--to=1h")["published"] == 0
    assert replay(nsqd, topic, "--destination-topic=t", there, "--from=1h", "--limit=2")["published"] == 2
    eventually(lambda: stored(elsewhere, "t") == numbers(2))
    assert nsqd.topic("t") is None


def test_a_dry_run_says_what_would_be_and_does_nothing(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *numbers(10))
    result = run_tool("nsq_replay", *source(nsqd, topic), "--from=2", "--dry-run")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode().splitlines() == [
        f"{address(nsqd.http_address)}  sequences 2 to 10  8 messages",
        f"8 messages of {topic} would be replayed",
    ]
    assert replay(nsqd, topic, "--dry-run")["planned"] == 10


def test_several_nodes_are_replayed_in_the_order_of_publication(tmp_path: Path, start_nsqd: StartNsqd) -> None:
    target = start_nsqd()
    with Nsqlookupd() as lookupd:
        options = (f"lookupd-tcp-address={address(lookupd.tcp)}", "broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "a", *options) as one, Nsqd(tmp_path / "b", *options) as two:
            for number in range(20):
                (one, two)[number % 2].connect().publish("t", b"%d" % number)
            eventually(lambda: len(lookupd.producers("t")) == 2)
            for node in (one, two):
                eventually(lambda node=node: node.http("GET", "/topic/log?topic=t").json["next"] == 10)
            result = run_tool(
                "nsq_replay", "--topic=t", f"--lookupd-http-address={address(lookupd.http_address)}",
                "--destination-topic=u", f"--destination-nsqd-tcp-address={address(target.tcp)}",
            )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(b"20 of 20 messages of t replayed into u in ")
    eventually(lambda: stored(target, "u") == numbers(20))


def test_no_faster_than_it_may_and_on_from_its_checkpoint(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, *numbers(40))
    checkpoint = tmp_path / "checkpoint"
    arguments = (*source(nsqd, topic), f"--destination-topic={topic}-2", f"--checkpoint={checkpoint}", "--json")
    with Tool("nsq_replay", *arguments, "--rate=5") as tool:
        eventually(lambda: nsqd.topic(f"{topic}-2") and nsqd.topic(f"{topic}-2")["depth"] >= 5)
        assert tool.stop(signal.SIGINT) == 3
        first = json.loads(tool.out)
    assert not first["complete"]
    assert 5 <= first["published"] < 40
    publish(nsqd, topic, b"not in the plan")
    result = run_tool("nsq_replay", *arguments)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["published"] == 40 - first["published"]
    eventually(lambda: stored(nsqd, f"{topic}-2") == numbers(40))
    again = run_tool("nsq_replay", *arguments)
    assert (again.returncode, json.loads(again.stdout)["published"]) == (0, 0)
    other = run_tool("nsq_replay", *source(nsqd, topic), "--destination-topic=other", f"--checkpoint={checkpoint}")
    assert (other.returncode, last_line(other.stderr)) == (
        1, f"checkpoint {checkpoint} belongs to another replay, {topic} into {topic}-2",
    )  # fmt: skip


def test_after_kill_9_it_goes_on_from_its_checkpoint(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, *numbers(40))
    arguments = (*source(nsqd, topic), f"--destination-topic={topic}-2", f"--checkpoint={tmp_path}/checkpoint")
    with Tool("nsq_replay", *arguments, "--rate=20") as tool:
        eventually(lambda: nsqd.topic(f"{topic}-2") and nsqd.topic(f"{topic}-2")["depth"] >= 25)
        tool.process.kill()
    result = run_tool("nsq_replay", *arguments)
    assert result.returncode == 0, result.stderr
    eventually(lambda: set(stored(nsqd, f"{topic}-2")) == set(numbers(40)))
    assert 40 - 25 <= int(result.stdout.split()[0]) < 40


def test_a_destination_that_goes_ends_it_and_it_says_how_to_go_on(
    nsqd: Nsqd, topic: str, start_nsqd: StartNsqd
) -> None:
    elsewhere = start_nsqd()
    publish(nsqd, topic, *numbers(40))
    there = f"--destination-nsqd-tcp-address={address(elsewhere.tcp)}"
    with Tool("nsq_replay", *source(nsqd, topic), "--destination-topic=t", there, "--rate=1", "--json") as tool:
        eventually(lambda: elsewhere.topic("t"))
        elsewhere.kill()  # between two publishes: one that was under way would be repeated for half a minute
        assert tool.wait() == 1
        assert "; to continue: --from=" in last_line(tool.log.encode())
        assert "Traceback" not in tool.log
        assert not json.loads(tool.out)["complete"]


def test_what_is_damaged_is_left_out_and_told(start_nsqd: StartNsqd) -> None:
    nsqd = start_nsqd("max-bytes-per-file=1000")
    publish(nsqd, "t", *(b"%d" % number * 400 for number in range(6)))
    segment = sorted(nsqd.data_path.glob("topics/*/*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data)
    summary = replay(nsqd, "t", "--destination-topic=u", status=3)
    assert (summary["planned"], summary["published"], summary["unreadable"], summary["complete"]) == (6, 5, 1, True)


def test_progress_is_told_unless_it_should_be_quiet(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *numbers(3))
    result = run_tool("nsq_replay", *source(nsqd, topic), f"--destination-topic={topic}-2", "--quiet")
    assert result.returncode == 0
    assert b"messages" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--topic required"),
        (["--topic=a b"], "invalid topic name 'a b'"),
        (["--topic=a"], "--destination-topic required"),
        (["--topic=a", "--destination-topic=b"], "--nsqd-http-address or --lookupd-http-address required"),
        (
            ["--topic=a", "--destination-topic=b", "--nsqd-http-address=127.0.0.1:1", "--from=noon"],
            "--from should be earliest, latest, a sequence, a time (2026-03-01T12:00:00Z), or 1h (an hour ago)",
        ),
        (
            ["--topic=a", "--destination-topic=b", "--nsqd-http-address=127.0.0.1:1", "--batch-size=0"],
            "--batch-size should be positive",
        ),
        (
            ["--topic=a", "--destination-topic=b", "--nsqd-http-address=127.0.0.1:1"],
            "127.0.0.1:1/topic/log?topic=a: Connection refused",
        ),
    ],
)
def test_nsq_replay_refuses_bad_arguments(arguments: list[str], line: str) -> None:
    result = run_tool("nsq_replay", *arguments)
    assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (1, b"", 1)
    assert last_line(result.stderr) == line


def test_a_checkpoint_that_cannot_be_written(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    publish(nsqd, topic, b"x")
    arguments = (*source(nsqd, topic), f"--destination-topic={topic}-2", f"--checkpoint={tmp_path}/nowhere/checkpoint")
    result = run_tool("nsq_replay", *arguments)
    assert result.returncode == 1
    assert (
        last_line(result.stderr) == f"cannot write checkpoint {tmp_path}/nowhere/checkpoint: No such file or directory"
    )
    assert nsqd.topic(f"{topic}-2") is None


def test_a_replay_that_fails_says_where_to_go_on(nsqd: Nsqd, topic: str, start_nsqd: StartNsqd) -> None:
    elsewhere = start_nsqd("max-msg-size=100")
    publish(nsqd, topic, *numbers(7), b"." * 200, *numbers(2))
    destination = f"--destination-nsqd-tcp-address={address(elsewhere.tcp)}"
    result = run_tool("nsq_replay", *source(nsqd, topic), f"--destination-topic={topic}", destination, "--batch-size=5")
    assert result.returncode == 1
    assert last_line(result.stderr).endswith("; to continue: --from=5")
    eventually(lambda: stored(elsewhere, topic) == numbers(5))  # history has what is synced
