"""nsq_dead with real nsqd: lists, plans, kicks, discards and exports, and never takes silence for nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import StartNsqd
from tests.support.process import Nsqd, Nsqlookupd, eventually
from tests.support.tools import Tool, address, last_line, run_tool

CHANNEL = ("--topic=t", "--channel=c")
POLICY = '[[policy]]\nchannel = "c"\nmax_attempts = 1\n'
REASON = "1 attempts, the last one requeued"


def bury(nsqd: Nsqd, *bodies: bytes) -> None:
    nsqd.post("/topic/create?topic=t")
    nsqd.post("/channel/create?topic=t&channel=c")
    before = buried(nsqd)
    nsqd.connect().publish("t", *bodies)
    with nsqd.connect() as client:
        client.subscribe("t", "c", ready=len(bodies))
        for message in client.messages(len(bodies)):
            client.send(b"REQ %b 0\n" % message.id)
        assert eventually(lambda: buried(nsqd) == before + len(bodies))


def buried(nsqd: Nsqd) -> int:
    count: int = json.loads(nsqd.http("GET", "/channel/buried?topic=t&channel=c&summary=true").body)["count"]
    return count


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """Run two nsqd for all tests that leave them as they are."""
    folder = tmp_path_factory.mktemp("nodes")
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    with Nsqd(folder / "a", f"policy-file={policy}") as one, Nsqd(folder / "b", f"policy-file={policy}") as two:
        yield [one, two]


@pytest.fixture
def nodes(running: list[Nsqd]) -> list[Nsqd]:
    """Return two nsqd that have buried 3 and 4 messages."""
    for nsqd in running:
        nsqd.http("POST", "/topic/delete?topic=t")
    bury(running[0], *numbers(3))
    bury(running[1], *numbers(4, 3))
    return running


def places(nodes: Sequence[Nsqd]) -> list[str]:
    return [f"--nsqd-http-address={address(node.http_address)}" for node in nodes]


def dead(verb: str, nodes: Sequence[Nsqd], *arguments: str, status: int = 0) -> list[str]:
    result = run_tool("nsq_dead", verb, *CHANNEL, *places(nodes), *arguments)
    assert result.returncode == status, result.stderr.decode()
    return result.stdout.decode().splitlines()


def test_what_is_buried_is_counted_by_reason(nodes: list[Nsqd]) -> None:
    one, two = (address(node.http_address) for node in nodes)
    assert dead("list", nodes) == [f"{one}  3 buried", f"{two}  4 buried", "7 messages", f"       7  {REASON}"]


def test_messages_are_shown_with_all_that_is_known(nodes: list[Nsqd]) -> None:
    shown = [json.loads(line) for line in dead("show", nodes)]
    assert [it["body"] for it in shown] == [str(number) for number in range(7)]
    assert [it["node"] for it in shown] == [address(nodes[0].http_address)] * 3 + [address(nodes[1].http_address)] * 4
    assert {it["reason"] for it in shown} == {REASON}
    assert [json.loads(line)["body"] for line in dead("show", nodes, "--limit=4")] == ["0", "1", "2", "3"]
    assert dead("show", nodes, "--reason=other") == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Nsqlookupd, list[Nsqd]]]:
    """Yield an nsqlookupd with two nsqd that have buried 3 and 4 messages."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    with Nsqlookupd() as lookupd:
        options = (
            f"policy-file={policy}",
            f"lookupd-tcp-address={address(lookupd.tcp)}",
            "broadcast-address=127.0.0.1",
        )
        with Nsqd(tmp_path / "a", *options) as one, Nsqd(tmp_path / "b", *options) as two:
            bury(one, *numbers(3))
            bury(two, *numbers(4, 3))
            eventually(lambda: len(lookupd.producers("t")) == 2)
            yield lookupd, [one, two]


def test_a_whole_cluster_is_kicked_after_a_plan(cluster: tuple[Nsqlookupd, list[Nsqd]]) -> None:
    lookupd, nodes = cluster
    place = f"--lookupd-http-address={address(lookupd.http_address)}"
    kick = ("kick", *CHANNEL, place)
    planned = run_tool("nsq_dead", *kick, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    lines = {
        f"{address(nodes[0].http_address)}  3 buried  kick 3",
        f"{address(nodes[1].http_address)}  4 buried  kick 4",
    }
    assert set(planned.stdout.decode().splitlines()) == lines
    refused = run_tool("nsq_dead", *kick)
    assert (refused.returncode, last_line(refused.stderr)) == (
        1, "nothing was done: use --yes to kick without a question",
    )  # fmt: skip
    assert [buried(node) for node in nodes] == [3, 4]
    done = run_tool("nsq_dead", *kick, "--yes")
    assert (done.returncode, done.stdout.decode().splitlines()[-1]) == (0, "7 messages kicked"), done.stderr
    assert [(buried(node), node.channel("t")["depth"]) for node in nodes] == [(0, 3), (0, 4)]


def test_a_kick_that_has_no_room_is_named_in_the_plan_and_needs_force(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    one = start_nsqd(f"policy-file={tmp_path}/policy.toml")
    bury(one, *numbers(3))
    where = address(one.http_address)
    bounded = POLICY + 'max_messages = 2\noverflow = "drop-oldest"\n'
    (tmp_path / "new.toml").write_text(bounded)
    (tmp_path / "new.toml").replace(tmp_path / "policy.toml")
    assert eventually(lambda: one.http("GET", "/config/policy").json["digest"] == sha256(bounded.encode()).hexdigest())
    lack = f"{where}  3 buried  kick 3 (the channel has room for 2: "
    assert dead("kick", [one], "--dry-run") == [f"{lack}refused without --force)"]
    assert dead("kick", [one], "--dry-run", "--limit=2") == [f"{where}  3 buried  kick 2"]
    refused = run_tool("nsq_dead", "kick", *CHANNEL, *places([one]), "--yes")
    assert (refused.returncode, b"the channel has no room for them" in refused.stderr) == (3, True)
    assert buried(one) == 3
    forced = dead("kick", [one], "--force", "--yes")
    assert forced == [f"{lack}new messages are dropped until these are consumed)", "3 messages kicked"]


def test_a_node_that_is_silent_is_named_and_not_counted_as_nothing(nodes: list[Nsqd], start_nsqd: StartNsqd) -> None:
    silent = start_nsqd()
    where = address(silent.http_address)
    silent.kill()
    try:
        arguments = (*CHANNEL, *places(nodes), f"--nsqd-http-address={where}")
        for verb, said in (("list", "7 messages, incomplete (failures: 1)"), ("kick", "")):
            result = run_tool("nsq_dead", verb, *arguments, *(["--yes"] if verb == "kick" else []))
            assert result.returncode == 3, result.stderr
            assert where in result.stderr.decode()
            assert said in result.stdout.decode()
        assert f"no answer: {where}" in result.stdout.decode()
        assert result.stdout.decode().splitlines()[-1] == "7 messages kicked, incomplete (failures: 1)"
    finally:
        silent.start()


def test_a_selection_and_a_limit_hold_for_all_nodes_together(nodes: list[Nsqd]) -> None:
    assert dead("discard", nodes, "--reason=other", "--yes")[-1] == "0 messages discarded"
    assert dead("discard", nodes, "--before=1h", "--yes")[-1] == "0 messages discarded"
    lines = dead("discard", nodes, "--limit=5", f"--reason={REASON}", "--yes")
    assert [line.rpartition("buried  ")[2] for line in lines] == ["discard 3", "discard 2", "5 messages discarded"]
    assert [buried(node) for node in nodes] == [0, 2]
    (message_id, *_) = [json.loads(line)["id"] for line in dead("show", nodes)]
    assert dead("discard", nodes, f"--id={message_id}", "--yes")[-1] == "1 messages discarded"
    assert [buried(node) for node in nodes] == [0, 1]


def test_a_rate_takes_its_time_and_goes_on_when_the_tool_is_stopped(nodes: list[Nsqd]) -> None:
    arguments = ("kick", *CHANNEL, *places(nodes[:1]), "--rate=2", "--yes")
    with Tool("nsq_dead", *arguments) as tool:
        eventually(lambda: buried(nodes[0]) < 3)
        assert tool.stop(signal.SIGINT) == 3, tool.log
        assert "goes on in its nsqd" in tool.log
    eventually(lambda: buried(nodes[0]) == 0)


def test_progress_is_awaited_until_the_job_has_ended(nodes: list[Nsqd]) -> None:
    assert dead("kick", nodes[:1], "--rate=3", "--yes")[-1] == "3 messages kicked"
    assert nodes[0].channel("t")["depth"] == 3


def test_a_job_under_way_is_shown_in_the_way_and_stopped(nodes: list[Nsqd]) -> None:
    nodes[0].post("/channel/kick?topic=t&channel=c&rate=0.01")
    where = address(nodes[0].http_address)
    assert dead("list", nodes)[0] == f"{where}  3 buried  kick running, 0 done"
    result = run_tool("nsq_dead", "discard", *CHANNEL, *places(nodes), "--yes")
    assert result.returncode == 3
    assert f"{where}: a kick or discard is already running" in result.stderr.decode()
    assert [buried(node) for node in nodes] == [3, 0]
    assert dead("stop", nodes) == [f"{where}  kick stopped, 0 done", f"{address(nodes[1].http_address)}  no job"]


def test_an_export_into_a_file_changes_nothing(nodes: list[Nsqd], tmp_path: Path) -> None:
    file = tmp_path / "dead.ndjson"
    assert dead("export", nodes, f"--output-file={file}") == ["7 messages exported"]
    assert [json.loads(line)["body"] for line in file.read_text().splitlines()] == [str(it) for it in range(7)]
    assert [buried(node) for node in nodes] == [3, 4]
    dead("export", nodes, f"--output-file={file}", status=1)  # nothing is overwritten


def test_an_export_into_a_topic_has_the_bodies(nodes: list[Nsqd], start_nsqd: StartNsqd) -> None:
    target = start_nsqd()
    target.post("/topic/create?topic=dead")
    target.post("/channel/create?topic=dead&channel=c")
    bury(nodes[0], b"\xff")
    there = (f"--destination-nsqd-tcp-address={address(target.tcp)}", "--destination-topic=dead")
    assert dead("export", nodes[:1], *there) == ["4 messages exported"]
    client = target.connect()
    client.subscribe("dead", "c", ready=10)
    assert sorted(client.bodies(4)) == [b"0", b"1", b"2", b"\xff"]


def test_a_token_is_sent_to_nsqd(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    rights, token = tmp_path / "rights.toml", tmp_path / "token"
    token.write_text("secret of the operator\n")
    digest = sha256(b"secret of the operator").hexdigest()
    rights.write_text(
        f'[[allow]]\nname = "ana"\ntoken_sha256 = "{digest}"\nroles = ["read", "operate"]\ntopics = ["t"]\n'
    )
    nsqd = start_nsqd(f"rights-file={rights}")
    refused = run_tool("nsq_dead", "list", *CHANNEL, *places([nsqd]))
    assert (refused.returncode, b"see --http-token-file" in refused.stderr) == (3, True)
    result = run_tool("nsq_dead", "list", *CHANNEL, *places([nsqd]), f"--http-token-file={token}")
    assert (result.returncode, last_line(result.stderr)) == (1, "no nsqd has the channel c of t")


@pytest.mark.parametrize(("arguments", "reason"), [
    (("resurrect",), "unknown arguments: [resurrect --nsqd-http-address=127.0.0.1:1]"),
    (("--do=resurrect", *CHANNEL), "unknown command 'resurrect': one of list, show, kick, discard, stop, export"),
    (("list", "--topic=t"), "--topic and --channel required"),
    (("kick", *CHANNEL, "--id=5"), "--id should have 16 hex digits"),
    (("kick", *CHANNEL, "--before=latest"), "--before should be a time (2026-03-01T12:00:00Z), or 1h (an hour ago)"),
    (("export", *CHANNEL), "export needs --output-file or --destination-topic"),
    (("discard", *CHANNEL, "--force"), "--force is for kick"),
    (("list", *CHANNEL, "--yes"), "--id, --before, --rate, --yes and --dry-run are for kick and discard"),
])  # fmt: skip
def test_a_mistake_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    result = run_tool("nsq_dead", *arguments, "--nsqd-http-address=127.0.0.1:1")
    assert (result.returncode, last_line(result.stderr)) == (1, reason)


def test_nobody_has_the_channel(nodes: list[Nsqd]) -> None:
    result: Any = run_tool("nsq_dead", "list", "--topic=t", "--channel=other", *places(nodes))
    assert (result.returncode, last_line(result.stderr)) == (1, "no nsqd has the channel other of t")
