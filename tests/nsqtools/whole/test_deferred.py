"""nsq_deferred with real nsqd: lists, plans, takes back and moves, and never takes silence for nothing."""

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
from tests.support.tools import address, last_line, run_tool

MINUTE = 60_000


def filled(nsqd: Nsqd, *keys: str) -> Nsqd:
    """Give the nsqd two channels and a message for each key, due after 10, 20, ... minutes."""
    nsqd.post("/topic/create?topic=t")
    for channel in ("a", "b"):
        nsqd.post(f"/channel/create?topic=t&channel={channel}")
    for number, key in enumerate(keys, 1):
        nsqd.post(f"/pub?topic=t&key={key}&defer={10 * number * MINUTE}", key.encode())
    return nsqd


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """Run two nsqd for all tests that leave them alive."""
    folder = tmp_path_factory.mktemp("nodes")
    with Nsqd(folder / "a") as one, Nsqd(folder / "b") as two:
        yield [one, two]


@pytest.fixture
def nodes(running: list[Nsqd]) -> list[Nsqd]:
    """Return two nsqd that have deferred 3 and 1 messages in each of two channels."""
    for nsqd in running:
        nsqd.http("POST", "/topic/delete?topic=t")
    return [filled(running[0], "k-1", "k-2", "k-3"), filled(running[1], "k-4")]


def places(nodes: Sequence[Nsqd]) -> list[str]:
    return [f"--nsqd-http-address={address(node.http_address)}" for node in nodes]


def tool(verb: str, nodes: Sequence[Nsqd], *arguments: str, status: int = 0) -> list[str]:
    result = run_tool("nsq_deferred", verb, "--topic=t", *places(nodes), *arguments)
    assert result.returncode == status, (result.stdout, result.stderr)
    return result.stdout.decode().splitlines()


def shown(nodes: Sequence[Nsqd], *arguments: str) -> list[Any]:
    return [json.loads(line) for line in tool("show", nodes, *arguments)]


def keys(nodes: Sequence[Nsqd], channel: str = "a") -> list[str]:
    return [it["key"] for it in shown(nodes, f"--channel={channel}")]


def test_deferred_messages_are_counted_with_the_next_due_time(nodes: list[Nsqd]) -> None:
    one, two = (address(node.http_address) for node in nodes)
    lines = tool("list", nodes)
    begins = [f"{one}  a  3 deferred  next due 2", f"{one}  b  3 def", f"{two}  a  1 def", f"{two}  b  1 def"]
    assert [line[: len(begin)] for line, begin in zip(lines, begins, strict=False)] == begins
    assert lines[4:] == ["8 deferred"]
    assert tool("list", nodes, "--channel=a")[-1] == "4 deferred"


def test_messages_are_shown_by_key_id_channel_and_due_time(nodes: list[Nsqd]) -> None:
    assert [(it["channel"], it["key"], it["body"]) for it in shown(nodes[:1])] == [
        (channel, key, key) for channel in ("a", "b") for key in ("k-1", "k-2", "k-3")
    ]
    assert keys(nodes) == ["k-1", "k-2", "k-3", "k-4"]
    assert [it["key"] for it in shown(nodes, "--channel=a", "--due-before=15m")] == ["k-1", "k-4"]
    assert [it["key"] for it in shown(nodes, "--channel=a", "--due-after=15m", "--limit=1")] == ["k-2"]
    assert [it["channel"] for it in shown(nodes, "--key=k-4")] == ["a", "b"]
    [found] = shown(nodes, "--key=k-4", "--channel=b")
    assert found["node"] == address(nodes[1].http_address)
    assert shown(nodes, f"--id={found['id']}", "--channel=b") == [found]


def test_named_messages_are_taken_back_after_a_plan(nodes: list[Nsqd]) -> None:
    one, two = (address(node.http_address) for node in nodes)
    names = ("--key=k-1", "--key=k-4")
    planned = [f"{one}  6 deferred  cancel up to 2 named", f"{two}  2 deferred  cancel up to 2 named"]
    assert tool("cancel", nodes, *names, "--dry-run") == planned
    refused = run_tool("nsq_deferred", "cancel", "--topic=t", *places(nodes), *names)
    assert refused.returncode == 1
    assert last_line(refused.stderr) == "nothing was done: use --yes to cancel without a question"
    assert keys(nodes) == ["k-1", "k-2", "k-3", "k-4"]
    assert tool("cancel", nodes, *names, "--yes") == [*planned, "4 cancelled"]
    assert keys(nodes) == ["k-2", "k-3"]
    assert tool("cancel", nodes, *names, "--yes")[-1] == "0 cancelled, 4 done"


def test_a_name_that_nobody_knows_is_told(nodes: list[Nsqd]) -> None:
    lines = tool("cancel", nodes, "--key=k-1", "--key=none", "--yes", status=3)
    assert lines[2:] == ["2 cancelled", "not found: key none"]


def test_an_id_and_a_channel(nodes: list[Nsqd]) -> None:
    [found] = shown(nodes, "--key=k-2", "--channel=a")
    assert tool("cancel", nodes, f"--id={found['id']}", "--channel=a", "--yes")[-1] == "1 cancelled"
    assert (keys(nodes[:1]), keys(nodes[:1], "b")) == (["k-1", "k-3"], ["k-1", "k-2", "k-3"])


def test_messages_are_chosen_by_the_time_when_they_are_due(nodes: list[Nsqd]) -> None:
    one, two = (address(node.http_address) for node in nodes)
    assert tool("cancel", nodes, "--due-before=25m", "--channel=a", "--yes") == [
        f"{one}  3 deferred  cancel 2",
        f"{two}  1 deferred  cancel 1",
        "3 cancelled",
    ]
    assert (keys(nodes), keys(nodes, "b")) == (["k-3"], ["k-1", "k-2", "k-3", "k-4"])
    assert tool("cancel", nodes, "--all", "--limit=4", "--yes")[-1] == "4 cancelled"
    assert tool("cancel", nodes, "--all", "--yes")[-1] == "1 cancelled"
    assert tool("list", nodes)[-1] == "0 deferred"


def test_messages_become_due_at_another_time(nodes: list[Nsqd]) -> None:
    assert tool("due", nodes, "--key=k-1", "--defer=1h", "--yes")[-1] == "2 moved"
    assert keys(nodes[:1]) == ["k-2", "k-3", "k-1"]
    assert tool("due", nodes, "--due-after=15m", "--channel=a", "--defer=0s", "--yes")[-1] == "3 moved"
    assert nodes[0].channel("t", "a")["depth"] == 3
    assert keys(nodes, "b") == ["k-2", "k-3", "k-1", "k-4"]


def test_what_a_consumer_has_is_told(nodes: list[Nsqd]) -> None:
    assert tool("due", nodes, "--key=k-4", "--channel=a", "--defer=0s", "--yes")[-1] == "1 moved"
    with nodes[1].connect() as client:
        client.subscribe("t", "a", ready=1)
        client.message()
        assert tool("cancel", nodes, "--key=k-4", "--yes", status=3)[-1] == "1 cancelled, 1 in flight"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Nsqlookupd, list[Nsqd]]]:
    with Nsqlookupd() as lookupd:
        options = (f"lookupd-tcp-address={address(lookupd.tcp)}", "broadcast-address=127.0.0.1")
        with Nsqd(tmp_path / "a", *options) as one, Nsqd(tmp_path / "b", *options) as two:
            filled(one, "k-1")
            filled(two, "k-2")
            eventually(lambda: len(lookupd.producers("t")) == 2)
            yield lookupd, [one, two]


def test_a_hung_node_of_a_cluster_is_named(cluster: tuple[Nsqlookupd, list[Nsqd]]) -> None:
    lookupd, nodes = cluster
    where, hung = f"--lookupd-http-address={address(lookupd.http_address)}", address(nodes[1].http_address)
    assert run_tool("nsq_deferred", "list", "--topic=t", where).stdout.splitlines()[-1] == b"4 deferred"
    nodes[1].send_signal(signal.SIGSTOP)
    try:
        arguments = ("--topic=t", where, "--http-client-request-timeout=1s")
        listed = run_tool("nsq_deferred", "list", *arguments)
        taken = run_tool("nsq_deferred", "cancel", *arguments, "--key=k-1", "--key=k-2", "--yes")
    finally:
        nodes[1].send_signal(signal.SIGCONT)
    assert (listed.returncode, taken.returncode) == (3, 3)
    assert listed.stdout.decode().splitlines()[-1] == "2 deferred, incomplete (failures: 1)"
    lines = taken.stdout.decode().splitlines()
    assert lines[1].startswith(f"no answer: {hung}/stats")
    assert lines[2:] == ["2 cancelled, incomplete (failures: 1)", "not found: key k-2"]


def test_a_node_that_is_gone_from_a_cluster_is_named(cluster: tuple[Nsqlookupd, list[Nsqd]]) -> None:
    lookupd, nodes = cluster
    where, gone = f"--lookupd-http-address={address(lookupd.http_address)}", address(nodes[1].http_address)
    nodes[1].kill()
    eventually(lambda: len(lookupd.producers("t")) == 1)
    listed = run_tool("nsq_deferred", "list", "--topic=t", where)
    taken = run_tool("nsq_deferred", "cancel", "--topic=t", where, "--key=k-1", "--yes")
    assert (listed.returncode, taken.returncode) == (3, 3)
    assert listed.stdout.decode().splitlines()[-1] == "2 deferred, incomplete (failures: 1)"
    assert f"{gone}: had the topic t and is no longer registered" in listed.stderr.decode()
    other = run_tool("nsq_deferred", "list", "--topic=other", where)
    assert (other.returncode, last_line(other.stderr)) == (1, "no nsqd has the topic other")


def test_a_node_that_refuses_connections_is_named(nodes: list[Nsqd], start_nsqd: StartNsqd) -> None:
    dead = start_nsqd()
    dead.kill()
    result = run_tool("nsq_deferred", "show", "--topic=t", "--channel=a", *places([*nodes, dead]))
    assert result.returncode == 3
    assert len(result.stdout.splitlines()) == 4
    assert address(dead.http_address) in result.stderr.decode()


def test_a_publisher_may_take_back_by_key(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    rights, token = tmp_path / "rights.toml", tmp_path / "token"
    token.write_text("publish\n")
    rights.write_text("".join(
        f'[[allow]]\nname = "{role}"\ntoken_sha256 = "{sha256(role.encode()).hexdigest()}"\nroles = ["{role}"]\n'
        for role in ("publish", "admin")
    ))  # fmt: skip
    nsqd = start_nsqd(f"rights-file={rights}")
    for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=a", "/pub?topic=t&key=k&defer=60000"):
        assert nsqd.http("POST", path, b"x", headers={"Authorization": "Bearer admin"}).status == 200
    with_token = f"--http-token-file={token}"
    where = address(nsqd.http_address)
    assert tool("cancel", [nsqd], with_token, "--key=k", "--yes") == [
        f"{where}  may not be counted  cancel up to 1 named",
        "1 cancelled",
    ]
    result = run_tool("nsq_deferred", "list", "--topic=t", *places([nsqd]), with_token)
    assert result.returncode == 3
    assert f"{where}: the token has no permission for this" in result.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cancel",), "cancel needs --key or --id, or --due-before or --due-after, or --all"),
        (("cancel", "--all", "--key=k"), "cancel needs --key or --id, or --due-before or --due-after, or --all"),
        (("cancel", "--key=k", "--defer=1s"), "--defer is for due"),
        (("cancel", "--key=a b"), "--key should have 1 to 64 printable characters of ASCII without space"),
        (("cancel", "--id=7"), "--id should have 16 hex digits"),
        (("cancel", "--key=k", "--limit=1"), "use --limit or names of messages not both"),
        (("due", "--key=k"), "due needs --defer"),
        (("due", "--key=k", "--defer=-1s"), "--defer should not be negative"),
        (("show", "--all"), "--all, --defer, --yes and --dry-run are for cancel and due"),
        (
            ("show", "--due-before=soon"),
            "--due-before should be a time (2026-03-01T12:00:00Z), or 1h (an hour from now)",
        ),
        (("list", "--limit=1"), "--key, --id, --due-before, --due-after and --limit are not for list"),
        (("--do=drop",), "unknown 'drop': one of list, show, cancel, due"),
    ],
)
def test_what_cannot_be_meant(arguments: Sequence[str], said: str) -> None:
    result = run_tool("nsq_deferred", *arguments, "--topic=t", "--nsqd-http-address=127.0.0.1:1")
    assert (result.returncode, last_line(result.stderr)) == (1, said)


def test_a_topic_or_a_channel_that_nobody_has(nodes: list[Nsqd]) -> None:
    result = run_tool("nsq_deferred", "list", "--topic=other", *places(nodes))
    assert (result.returncode, last_line(result.stderr)) == (1, "no nsqd has the topic other")
    result = run_tool("nsq_deferred", "list", "--topic=t", "--channel=c", *places(nodes))
    assert (result.returncode, last_line(result.stderr)) == (1, "no nsqd has the channel c of t")
