"""No page says that nothing is there while nodes are silent, or before any has answered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from nsqadmin.cluster.merge import totals_of
from nsqadmin.cluster.model import Health, Latency, Lookupd, Percentile, Rates, Silent, Snapshot, TopicNode
from tests.support.picture import NOW, channel, channel_node, client, node, snapshot, topic
from tests.support.process import Nsqadmin, needs_module

needs_module("starlette")
needs_module("jinja2")

# All of these were seen on screen, or are in the templates.
CLAIMS: Final = re.compile(
    r"No messages wait|No backlog grows|Nothing arrives now|Nothing is requeued|No consumer (?:is|matches)|No topic yet"
    r"|Nothing (?:else )?needs attention|All channels keep up|All is well|>0</span></b> waiting|No channel yet"
    r"|No connection publishes|every registered name is on a node|>None\.<|On no node|keeps up"
    r"|[Nn]o topics|[Nn]o connections|[Nn]o tasks|No nsqd has|No such topic|Nothing here yet|Nothing matches<",
)
PAGES: Final = (
    "/",
    "/topics",
    "/topics?filter=nothing",
    "/consumers",
    "/consumers?filter=nothing",
    "/activity",
    "/lookup",
    "/incidents",
    "/incidents?rule=D3",
    "/topics/unheard-of",
    "/topics/idle/unheard-of",
    "/nodes",
    "/topics/idle",
    "/topics/idle?tab=producers",
    "/topics/idle/c",
    "/topics/idle/c?tab=consumers",
    "/topics/idle/c?tab=nodes",
    "/nodes/n2:4151",
    "/nodes/n4:4151",
)
ALWAYS: Final = ("/", "/topics", "/topics?filter=x", "/consumers", "/nodes", "/nodes/n9:1", "/topics/x", "/incidents")


def silent_cluster() -> Snapshot:
    """Return a cluster of five nodes, two of which are silent, with a topic that grows and one that does nothing."""
    names = [f"n{at}:4151" for at in range(1, 6)]
    silent = ("n4:4151", "n5:4151")
    rows = tuple(channel_node(it, depth=100, clients=(client(it, ready_count=5),)) for it in names)
    rates = Rates(incoming=40.0, finished=4.0, requeued=0.0, timed_out=0.0, failed=0.0, dropped=2.0, removed=2.0)
    growing = channel(*rows, topic="orders", name="shipping", silent=silent, rates=rates, net_rate=36.0)
    idle = channel(*(channel_node(it) for it in names), topic="idle", silent=silent)
    topics = tuple(
        topic(it, name=it.topic, nodes=tuple(TopicNode(node=name) for name in names), silent=silent)
        for it in (growing, idle)
    )
    return cluster(*topics, silent=silent, names=names)


def cluster(*topics: object, silent: tuple[str, ...], names: list[str]) -> Snapshot:
    shown = snapshot(
        *topics,  # type: ignore[arg-type]
        nodes=tuple(
            node(it, health=Health.DOWN if it in silent else Health.OK, answered_at=NOW - 60, topic_count=2)
            for it in names
        ),
        silent=tuple(Silent(node=it, since=NOW - 60, answered_at=NOW - 65) for it in silent),
        totals=totals_of(topics),  # type: ignore[arg-type]
        producers=(),
    )
    return shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("snapshots")


def shown_by(folder: Path, name: str, picture: Snapshot) -> Nsqadmin:
    from nsqadmin.cluster.model import Recording
    from nsqadmin.cluster.recording import encode

    file = folder / f"{name}.json"
    file.write_bytes(encode(Recording(snapshot=picture)))
    return Nsqadmin(f"snapshot={file}")


@pytest.fixture(scope="module")
def admin(folder: Path) -> Iterator[Nsqadmin]:
    with shown_by(folder, "silent", silent_cluster()) as it:
        yield it
        assert "Traceback" not in it.log


def page(admin: Nsqadmin, path: str) -> str:
    return admin.http("GET", path).body.decode()


@pytest.mark.parametrize("path", PAGES)
def test_no_page_claims_that_nothing_is_there_while_nodes_are_silent(admin: Nsqadmin, path: str) -> None:
    assert CLAIMS.findall(page(admin, path)) == []


def test_what_grows_on_the_living_nodes_is_listed_with_at_least(admin: Nsqadmin) -> None:
    shown = page(admin, "/")
    (row,) = re.findall(r'title="([^"]*)">(≥ ↑ 36/s)<', shown)
    assert row[0] == "on 3 of 5 nodes, without n4:4151, n5:4151"
    assert "Unknown: 2 of 5 nodes are silent." in shown


def test_a_net_rate_of_0_is_that_of_the_nodes_that_answer(admin: Nsqadmin) -> None:
    for path in ("/topics", "/topics/idle/c"):
        shown = page(admin, path)
        of_idle = re.findall(r'(≥ </span>)?<span data-k="topics/idle/c/net_rate"[^>]*>0/s<', shown)
        assert of_idle == ["≥ </span>"], path


def test_the_page_of_a_channel_names_apart_what_leaves_it(admin: Nsqadmin) -> None:
    shown = page(admin, "/topics/orders/shipping")
    assert "growing" in shown
    assert re.search(r"Dropped.*?≥.*?2/s", shown, re.DOTALL)


def test_with_no_node_there_is_not_even_a_zero(folder: Path) -> None:
    only = cluster(silent=("n1:4151",), names=["n1:4151"])
    with shown_by(folder, "only", only) as admin:
        shown = page(admin, "/")
        assert CLAIMS.findall(shown) == []
        assert "<b>?</b> waiting" in shown
        assert "Unknown: the only node is silent." in shown


@pytest.mark.parametrize("has_lookupds", [True, False])
def test_in_the_first_moment_nothing_is_claimed(folder: Path, has_lookupds: bool) -> None:
    lookupds = (Lookupd(address="l1:4161", health=Health.NEVER),) if has_lookupds else ()
    first = snapshot(nodes=(), index=0, has_lookupds=has_lookupds, lookupds=lookupds)
    with shown_by(folder, f"first-{has_lookupds}", first) as admin:
        assert {path: CLAIMS.findall(page(admin, path)) for path in ALWAYS} == {path: [] for path in ALWAYS}


def test_a_node_that_has_never_answered_has_no_numbers(folder: Path) -> None:
    never = node("n1:4151", health=Health.NEVER, answered_at=None, own_health="")
    with shown_by(folder, "never", snapshot(nodes=(never,))) as admin:
        assert "never answered" in page(admin, "/nodes/n1:4151")
        assert 'title="0"' not in page(admin, "/nodes/n1:4151")


def test_the_health_that_a_silent_node_had_is_said_as_its_last(admin: Nsqadmin) -> None:
    assert "<dd>OK (last known)</dd>" in page(admin, "/nodes/n4:4151")
    assert "<dd>OK</dd>" in page(admin, "/nodes/n2:4151")
    assert page(admin, "/nodes").count('<span title="OK">') == 3


def test_a_directory_that_does_not_answer_agrees_with_nobody(folder: Path) -> None:
    gone = Lookupd(address="l1:4161", health=Health.DOWN)
    with shown_by(folder, "directory", snapshot(lookupds=(gone,))) as admin:
        assert "lists the same topics" not in page(admin, "/lookup")


def test_a_latency_without_a_sample_is_a_dash(folder: Path) -> None:
    nothing = Latency(count=0, percentiles=(Percentile(quantile=0.99, average=None, minimum=None, maximum=None),))
    idle = channel(channel_node(latency=nothing), latency=nothing)
    with shown_by(folder, "latency", snapshot(topic(idle))) as admin:
        shown = page(admin, "/topics/t/c")
        assert "–, nothing was finished in the time that nsqd measures" in shown
        assert "0 s" not in shown
        told = admin.http("GET", "/api/v2/topics/t/c").json
        assert told["latency"]["percentiles"][0]["maximum"] is None
