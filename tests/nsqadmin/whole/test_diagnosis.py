"""Faults of a real nsqd: nsqadmin names each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nsqadmin.cluster.model import Snapshot
from tests.nsqadmin.steered_world import World
from tests.support.client import Client, Disconnected
from tests.support.cluster import Cluster, a_cluster, name_of
from tests.support.process import PATIENT, Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")


LIMIT = 60.0  # seconds until a finding has to appear; some rules look at a trend


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as it:
        yield it


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Nsqadmin]:
    with Nsqadmin(*cluster.lookupd_options, "sample-interval=300ms", "discovery-interval=300ms", PATIENT) as it:
        yield it
        assert "Traceback" not in it.log


@pytest.fixture
def node(cluster: Cluster) -> Nsqd:
    return cluster.nodes[0]


@pytest.fixture
def a_topic(cluster: Cluster, node: Nsqd, topic: str) -> Iterator[str]:
    node.post(f"/topic/create?topic={topic}")
    node.post(f"/channel/create?topic={topic}&channel=c")
    yield topic
    cluster.delete_topic(topic)


def wait_for(admin: Nsqadmin, rule: str, path: str) -> str:
    """Wait until the rule finds something, and return the verdict."""

    def verdict() -> str | None:
        answer = admin.json("GET", f"/api/v2/diagnose/{path}")
        findings = answer.json["findings"] if answer.status == 200 else []
        return next((it["verdict"] for it in findings if it["rule"] == rule), None)

    found: str = eventually(verdict, LIMIT)
    return found


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Repeat `work` in a thread beside the test."""
    stop = threading.Event()

    def repeat() -> None:
        try:
            while not stop.wait(0.01):
                work()
        except (Disconnected, OSError):
            pass

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def publish(node: Nsqd, topic: str, count: int = 10) -> None:
    node.post(f"/mpub?topic={topic}", b"\n".join(b"%d" % number for number in range(count)))


def consumer_of(node: Nsqd, topic: str, ready: int, **identity: object) -> Client:
    client = node.connect()
    # Few of them answer, and until a busy machine has found something nsqd must not close the connection.
    client.identify(heartbeat_interval=60_000, **identity)
    client.subscribe(topic, "c", ready=ready)
    return client


def test_d1_paused(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    publish(node, a_topic)
    node.post(f"/channel/pause?topic={a_topic}&channel=c")
    assert wait_for(admin, "D1", f"{a_topic}/c") == "Paused: nothing is delivered"


def test_d2_paused_on_one_node(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    cluster.nodes[1].post(f"/topic/create?topic={a_topic}")
    cluster.nodes[1].post(f"/channel/create?topic={a_topic}&channel=c")
    cluster.nodes[1].post(f"/channel/pause?topic={a_topic}&channel=c")
    assert wait_for(admin, "D2", f"{a_topic}/c") == "Paused on 1 of 2 nodes"


def test_d3_no_consumer(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    publish(node, a_topic)
    assert wait_for(admin, "D3", f"{a_topic}/c") == "No consumer is connected"


def test_the_page_of_a_node_says_which_channel_is_in_trouble(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    node.post(f"/pub?topic={a_topic}", b"x")
    wait_for(admin, "D3", f"{a_topic}/c")
    page = admin.http("GET", f"/nodes/{name_of(node)}").body.decode()
    (row,) = [it for it in page.split("<tr") if f'/topics/{a_topic}/c"' in it]
    assert "Warning" in row or "Problem" in row


def test_d4_no_consumer_where_messages_wait(admin: Nsqadmin, cluster: Cluster, a_topic: str) -> None:
    cluster.nodes[1].post(f"/topic/create?topic={a_topic}")
    cluster.nodes[1].post(f"/channel/create?topic={a_topic}&channel=c")
    consumer_of(cluster.nodes[0], a_topic, 10)
    publish(cluster.nodes[1], a_topic)
    assert "1 of 2 nodes has no consumer" in wait_for(admin, "D4", f"{a_topic}/c")


def test_d5_nobody_is_ready(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    consumer_of(node, a_topic, 0)
    publish(node, a_topic)
    assert "RDY 0" in wait_for(admin, "D5", f"{a_topic}/c")


def test_d6_saturated(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    client = consumer_of(node, a_topic, 2)

    def work() -> None:
        publish(node, a_topic, 20)
        client.finish(client.message())

    with meanwhile(work):
        assert "saturated" in wait_for(admin, "D6", f"{a_topic}/c")


def test_d7_stuck_consumers(tmp_path: Path) -> None:
    """Half a minute has to pass, so it passes on a steered clock."""
    with ExitStack() as stack:
        world = World(tmp_path, stack, 1, tick=5.0)
        node, verdicts = world.nodes[0].daemon, list[list[str]]()

        def see(snapshot: Snapshot) -> None:
            verdicts.append([it.verdict for it in snapshot.findings if it.rule == "D7"])

        async def a_minute() -> None:
            node.connect().publish("t", b"x")
            await world.pass_time(60)

        world.watchers.append(see)
        world.actors.append(world.consumer("t", "c", ready=2, per_tick=0, msg_timeout=1))
        world.run(a_minute)
    assert verdicts[0] == []
    assert ["Consumers are stuck" in it for it in verdicts[-1]] == [True], verdicts


def test_d8_consumers_are_failing(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    client = consumer_of(node, a_topic, 5)
    publish(node, a_topic)
    with meanwhile(lambda: client.requeue(client.message())):
        assert "Consumers are failing" in wait_for(admin, "D8", f"{a_topic}/c")


def test_d9_one_slow_consumer(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    quick = [consumer_of(node, a_topic, 10, client_id=f"quick-{it}", hostname=f"quick-{it}") for it in range(3)]
    consumer_of(node, a_topic, 2, client_id="slow", hostname="slow", msg_timeout=600_000)

    def work() -> None:
        publish(node, a_topic, 12)
        for client in quick:
            for _ in range(3):
                client.finish(client.message())

    with meanwhile(work):
        assert wait_for(admin, "D9", f"{a_topic}/c") == "One slow consumer: slow"


def test_how_long_a_consumer_has_had_its_oldest_message_is_told(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    consumer_of(node, a_topic, 1, client_id="holder", hostname="holder", msg_timeout=600_000)
    consumer_of(node, a_topic, 0, client_id="idler", hostname="idler")
    publish(node, a_topic)

    def ages() -> dict[str, float | None]:
        rows = admin.json("GET", f"/api/v2/topics/{a_topic}/c").json.get("nodes", ())
        return {it["client_id"]: it["oldest_in_flight"] for row in rows for it in row["clients"] or ()}

    eventually(lambda: (ages().get("holder") or 0.0) > 1.0, LIMIT)
    assert ages()["idler"] is None
    page = admin.http("GET", f"/topics/{a_topic}/c?tab=consumers").body.decode()
    assert page.index("idler") < page.index("holder")  # RDY 0 is worse than to be busy


def test_d10_deferred(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    for _ in range(12):
        node.post(f"/pub?topic={a_topic}&defer=600000", b"later")
    # A sample may have come before the last of them.
    eventually(lambda: wait_for(admin, "D10", f"{a_topic}/c") == "12 messages wait for their delay")


def test_d12_a_sampling_consumer(admin: Nsqadmin, node: Nsqd, a_topic: str) -> None:
    consumer_of(node, a_topic, 1, client_id="archive", hostname="archive", sample_rate=10)
    assert wait_for(admin, "D12", f"{a_topic}/c") == "archive takes 10 %, by design"


def test_d13_no_channel(admin: Nsqadmin, node: Nsqd, topic: str) -> None:
    publish(node, topic)
    assert "until a channel exists" in wait_for(admin, "D13", topic)


def test_d16_a_node_that_has_died_and_a_missing_nsqlookupd(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        options = (*cluster.lookupd_options, "sample-interval=300ms", "discovery-interval=300ms")
        with Nsqadmin(*options) as admin:

            def health(daemons: str) -> list[str]:
                return [it["health"] for it in admin.json("GET", "/api/v2/nodes").json[daemons]]

            # A node that has never answered is forgotten with its registration, so kill it after its first answer.
            eventually(lambda: health("nodes") == health("lookupds") == ["ok", "ok"])
            cluster.nodes[1].kill()
            cluster.lookupds[1].kill()

            def about() -> dict[str, str]:
                findings = admin.json("GET", "/api/v2/diagnose").json["findings"]
                return {it["node"]: it["verdict"] for it in findings if it["rule"] == "D16"}

            gone, lookupd = name_of(cluster.nodes[1]), f"127.0.0.1:{cluster.lookupds[1].http_address[1]}"
            eventually(lambda: {gone, lookupd} <= set(about()))
            assert about()[gone] == f"{gone} does not answer"
            assert about()[lookupd] == f"nsqlookupd {lookupd} does not answer"
