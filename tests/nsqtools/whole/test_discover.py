"""Tools whose destination is found by nsqlookupd."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.brokers import StartNsqd
from tests.support.cluster import Cluster, a_cluster
from tests.support.process import Nsqd, eventually
from tests.support.tools import LIMIT, Tool, address, run_tool

MOST_TIMES = 10  # a node may be connected late, but hardly ever so often in a row


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with a_cluster(tmp_path) as cluster:
        eventually(lambda: all(len(it.get("/nodes")["producers"]) == 2 for it in cluster.lookupds))
        yield cluster


def count_in(cluster: Cluster, topic: str) -> list[int]:
    return [(node.topic(topic) or {"message_count": 0})["message_count"] for node in cluster.nodes]


def check_shares(cluster: Cluster, topic: str, count: int, publish: Callable[[], None]) -> None:
    """Publish `count` messages until each node gets some: the first to be connected gets all before the other one is."""
    for _ in range(MOST_TIMES):
        before = count_in(cluster, topic)
        publish()
        shares = [after - earlier for earlier, after in zip(before, count_in(cluster, topic), strict=True)]
        assert sum(shares) == count
        if min(shares) > 0:
            return
    raise AssertionError(f"one node got everything {MOST_TIMES} times")


def lookups(cluster: Cluster, flag: str = "destination-lookupd-http-address") -> list[str]:
    return [f"--{flag}={address(it.http_address)}" for it in cluster.lookupds]


def test_records_go_to_one_of_the_nsqds_that_nsqlookupd_lists(cluster: Cluster) -> None:
    cluster.lookupds[1].kill()

    def publish() -> None:
        result = run_tool("to_nsq", "--topic=t", *lookups(cluster, "lookupd-http-address"), input=b"a\nb\nc\nd\ne\nf")
        assert result.returncode == 0, result.stderr

    check_shares(cluster, "t", 6, publish)


def test_no_nsqlookupd_answers() -> None:
    result = run_tool("to_nsq", "--topic=t", "--lookupd-http-address=127.0.0.1:1", input=b"a")
    assert result.returncode == 1
    assert b"no nsqlookupd could be asked" in result.stderr


def test_messages_are_forwarded_while_a_destination_goes(cluster: Cluster, nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=nsq_to_nsq")
    with (
        nsqd.connect() as client,
        Tool("nsq_to_nsq", f"--topic={topic}", f"--nsqd-tcp-address={address(nsqd.tcp)}", *lookups(cluster)) as tool,
    ):

        def both_take_part() -> bool:  # the first messages go to the node that is connected first
            client.publish(topic, b"x")
            return min(count_in(cluster, topic)) > 0

        eventually(both_take_part, timeout=LIMIT)
        cluster.nodes[0].stop()
        for number in range(20):
            client.publish(topic, b"%d" % number)
        eventually(lambda: nsqd.channel(topic, "nsq_to_nsq")["depth"] == 0, timeout=LIMIT)
        tool.process.send_signal(signal.SIGTERM)
        assert tool.wait() == 0


def test_a_replay_into_another_cluster(cluster: Cluster, start_nsqd: StartNsqd) -> None:
    source = start_nsqd()
    for number in range(10):
        source.connect().publish("t", b"%d" % number)
    eventually(lambda: source.http("GET", "/topic/log?topic=t").json["next"] == 10)

    def replay() -> None:
        result = run_tool(
            "nsq_replay",
            "--topic=t",
            f"--nsqd-http-address={address(source.http_address)}",
            "--destination-topic=again",
            "--batch-size=1",
            "--json",
            *lookups(cluster),
        )
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["published"] == 10

    check_shares(cluster, "again", 10, replay)


@pytest.mark.parametrize("tool", ["nsq_to_nsq", "nsq_replay"])
def test_one_kind_of_destination(tool: str) -> None:
    result = run_tool(
        tool,
        "--topic=t",
        f"--nsqd-{'tcp' if tool == 'nsq_to_nsq' else 'http'}-address=h:1",
        "--destination-topic=u",
        "--destination-nsqd-tcp-address=h:1",
        "--destination-lookupd-http-address=h:1",
    )
    assert result.returncode == 1
    assert b"use --destination-nsqd-tcp-address or --destination-lookupd-http-address not both" in result.stderr
