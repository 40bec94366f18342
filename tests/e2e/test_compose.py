"""compose.yaml with a real engine, if there is one: the cluster that a newcomer gets.

Compose v2 and docker-compose 1.29 are tried, if installed. The images are built on the image that `PYTHON_IMAGE` in
deploy/docker/Dockerfile names, so that has to be present or available.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tests.support import hangs
from tests.support.process import ROOT, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("NSQ_TEST_PYTHON" in os.environ, reason="the images have their own installation"),
]

PROJECT = "nsq-suite-test"
TOPIC = "orders"
NODES = {"nsqd1": 4151, "nsqd2": 4251, "nsqd3": 4351}
ADDRESSES = {"nsqd1": "10.213.4.11", "nsqd2": "10.213.4.12", "nsqd3": "10.213.4.13"}
LOOKUPDS = (4161, 4261)
ADMIN = 4171
SERVICES = (*NODES, "nsqlookupd1", "nsqlookupd2", "nsqadmin")
COUNT = """
from deltalake import DeltaTable
from pyarrow.parquet import read_table

rows = read_table(DeltaTable("/data/orders").file_uris(), columns=["node", "sequence"])
print(len(rows), len(set(zip(*rows.to_pydict().values()))))
"""
COLLECT = ROOT / "tests" / "e2e" / "peers" / "collect.py"
BUILD_TIMEOUT = 1800.0
TIMEOUT = 120.0
SPARK_TIMEOUT = 600.0  # seconds; Spark starts in half a minute on an idle machine, and in minutes on a busy one
GRACE = 30.0  # stop_grace_period


def run(*command: str | Path, timeout: float = TIMEOUT, check: bool = True) -> str:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0 or not check, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False).returncode == 0


class Compose:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = [*command, "--project-name", PROJECT]

    def __call__(self, *arguments: str, timeout: float = TIMEOUT) -> str:
        return run(*self._command, *arguments, timeout=timeout)

    def container(self, service: str) -> Any:
        """Return what the engine knows about a service's container, running or not."""
        label = ["--filter", f"label=com.docker.compose.project={PROJECT}"]
        found = run(
            "docker", "ps", "--all", "--quiet", *label, "--filter", f"label=com.docker.compose.service={service}"
        )
        return json.loads(run("docker", "inspect", *found.split()))[0]


@pytest.fixture(params=["docker compose", "docker-compose"])
def compose(request: pytest.FixtureRequest) -> Iterator[Compose]:
    command = request.param.split()
    if not works("docker", "info"):
        pytest.skip("no container engine answers here (docker info)")
    if not works(*command, "version"):
        pytest.skip(f"no {request.param} here")
    if taken := [port for port in published() if not is_free(port)]:
        pytest.skip(f"something listens at {', '.join(map(str, taken))}, where the cluster would")
    compose = Compose(command)
    hangs.lift_limit()  # images take longer to build than a test may take
    compose("--profile", "demo", "build", timeout=BUILD_TIMEOUT)
    try:
        yield compose
    finally:
        compose("--profile", "demo", "--profile", "pipeline", "down", "--volumes", "--timeout", "5")


def published() -> list[int]:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return [int(port.rpartition(":")[2]) for service in services.values() for port in service.get("ports", ())]


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# Talking to the cluster from the host


def post(port: int, path: str, body: str = "") -> None:
    with urlopen(f"http://127.0.0.1:{port}{path}", data=body.encode(), timeout=30):
        pass


def get(port: int, path: str) -> Any:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def producers(lookupd: int) -> set[tuple[str, int]]:
    return {(it["broadcast_address"], it["tcp_port"]) for it in get(lookupd, f"/lookup?topic={TOPIC}")["producers"]}


def publish(node: str, bodies: Sequence[str]) -> None:
    for body in bodies:
        post(NODES[node], f"/pub?topic={TOPIC}", body)


class Collector:
    """A consumer that reports what it has finished."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self.bodies: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.bodies.extend(line.rstrip("\n") for line in self._process.stdout)

    def has(self, bodies: Sequence[str]) -> None:
        wanted = set(bodies)
        eventually(lambda: wanted <= set(self.bodies), TIMEOUT)

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(TIMEOUT) == 0
        self._reader.join(TIMEOUT)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def collecting(command: Sequence[str | Path]) -> Iterator[Collector]:
    collector = Collector(command)
    try:
        yield collector
    finally:
        collector.stop()


def inside(channel: str) -> list[str]:
    """Run a consumer in a container of the network, which asks both nsqlookupd by their names there."""
    script = COLLECT.read_text(encoding="utf-8")
    addresses = ("nsqlookupd1:4161", "nsqlookupd2:4261")
    return [
        "docker",
        "run",
        "--rm",
        "--network",
        "nsq",
        "nsq-suite/tools",
        "python",
        "-c",
        script,
        TOPIC,
        channel,
        *addresses,
    ]


def on_host(channel: str) -> list[str | Path]:
    """Run a consumer on the host, which knows no name of a container."""
    return [sys.executable, COLLECT, TOPIC, channel, *(f"127.0.0.1:{it}" for it in LOOKUPDS)]


def numbered(text: str, count: int = 50) -> list[str]:
    return [f"{text} {number}" for number in range(count)]


def test_the_cluster_of_a_newcomer(compose: Compose) -> None:
    compose("up", "--detach")
    for service in SERVICES:
        eventually(lambda name=service: compose.container(name)["State"]["Health"]["Status"] == "healthy", TIMEOUT)

    # The channels have to exist before messages are published, and before their consumers come.
    for port in NODES.values():
        post(port, f"/topic/create?topic={TOPIC}")
        for channel in ("inside", "outside"):
            post(port, f"/channel/create?topic={TOPIC}&channel={channel}")
    everybody = {(ADDRESSES[name], port - 1) for name, port in NODES.items()}
    for lookupd in LOOKUPDS:
        eventually(lambda port=lookupd: producers(port) == everybody)

    assert TOPIC in eventually(lambda: get(ADMIN, "/api/topics")["topics"])
    with urlopen(f"http://127.0.0.1:{ADMIN}/", timeout=30) as page:
        assert "<html" in page.read().decode()

    assert not any("reachable" in it for it in get(LOOKUPDS[0], "/nodes")["producers"])
    publish("nsqd1", numbered("to the first"))
    with collecting(inside("inside")) as in_container, collecting(on_host("outside")) as outside:
        both = (in_container, outside)
        for node in NODES:
            publish(node, numbered(f"to {node}"))
        for collector in both:
            collector.has([*numbered("to the first"), *(body for node in NODES for body in numbered(f"to {node}"))])

        publish("nsqd2", numbered("before the kill"))
        run("docker", "kill", compose.container("nsqd2")["Id"])
        for lookupd in LOOKUPDS:
            eventually(lambda port=lookupd: producers(port) == everybody - {(ADDRESSES["nsqd2"], 4250)})
        publish("nsqd3", numbered("without the second"))
        for collector in both:
            collector.has(numbered("without the second"))

        compose("start", "nsqd2")
        for collector in both:
            collector.has(numbered("before the kill"))

    # Messages published now are not consumed, and everything is stopped.
    for node in NODES:
        eventually(lambda port=NODES[node]: is_up(port), TIMEOUT)
        publish(node, numbered(f"over the stop, {node}"))
    began = time.monotonic()
    compose("stop")
    assert time.monotonic() - began < GRACE
    for service in SERVICES:
        assert compose.container(service)["State"]["ExitCode"] == 0, service

    compose("start")
    with collecting(inside("inside")) as in_container, collecting(on_host("outside")) as outside:
        for collector in (in_container, outside):
            collector.has([body for node in NODES for body in numbered(f"over the stop, {node}")])


def is_up(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/ping", timeout=5):
            return True
    except OSError:
        return False


def test_a_node_killed_under_its_publisher_comes_back_with_all_that_it_accepted(compose: Compose) -> None:
    compose("up", "--detach")
    for port in NODES.values():
        eventually(lambda it=port: is_up(it), TIMEOUT)
        post(port, f"/topic/create?topic={TOPIC}")
        post(port, f"/channel/create?topic={TOPIC}&channel=outside")
    container = compose.container("nsqd2")["Id"]
    with ExitStack() as publishers:
        accepted = {node: publishers.enter_context(publishing(node)) for node in NODES}
        eventually(lambda: min(map(len, accepted.values())) > 100, TIMEOUT)
        # Not `docker kill`: the engine takes that for a stop that is wanted, and leaves the container down.
        # The shell may end together with the container, so its exit status says nothing.
        kill = "kill -KILL $(cat /proc/1/task/1/children)"
        run("docker", "exec", container, "sh", "-c", kill, check=False)
        eventually(lambda: compose.container("nsqd2")["RestartCount"] == 1, TIMEOUT)
        before = len(accepted["nsqd2"])
        eventually(lambda: len(accepted["nsqd2"]) > before + 100, TIMEOUT)
    with collecting(on_host("outside")) as outside:
        outside.has([body for bodies in accepted.values() for body in bodies])


@contextmanager
def publishing(node: str) -> Iterator[list[str]]:
    """Publish to a node in a thread, whether it is up or not; yield the bodies that it has accepted so far."""
    accepted: list[str] = []
    stopping = threading.Event()

    def publish_until_stopped() -> None:
        for number in itertools.count():
            body = f"{number} to {node}"
            # Otherwise it is not known whether the node has it. HTTPException: killed in the middle of an answer.
            with suppress(OSError, HTTPException):
                post(NODES[node], f"/pub?topic={TOPIC}", body)
                accepted.append(body)
            if stopping.wait(0.005):
                return

    publisher = threading.Thread(target=publish_until_stopped)
    publisher.start()
    try:
        yield accepted
    finally:
        stopping.set()
        publisher.join(TIMEOUT)


def test_what_the_images_have_and_have_not(compose: Compose) -> None:
    compose("up", "--detach", "nsqd1")
    container = compose.container("nsqd1")
    assert container["Config"]["User"] == "nsq"
    assert container["HostConfig"]["ReadonlyRootfs"]
    ask = ("docker", "exec", container["Id"], "sh", "-c")
    assert run(*ask, "id -u").strip() == "4150"
    assert run(*ask, "head -c 4 /proc/1/cmdline") == "tini"
    assert run(*ask, "command -v gcc cc make; true") == ""
    assert run(*ask, "touch /here 2>&1 || echo refused").strip().endswith("refused")
    assert run(*ask, "touch /data/here && echo written").strip() == "written"
    eventually(lambda: is_up(NODES["nsqd1"]), TIMEOUT)
    assert "core: compiled" in run("docker", "logs", container["Id"], check=False) + stderr_of_logs(container["Id"])
    compose("stop", "nsqd1")
    compose("run", "--rm", "--no-deps", "-T", "nsqd1", "fsck", "/data")


def stderr_of_logs(container: str) -> str:
    return subprocess.run(
        ["docker", "logs", container], capture_output=True, text=True, timeout=TIMEOUT, check=True
    ).stderr


def test_the_profile_with_a_demo(compose: Compose) -> None:
    compose("--profile", "demo", "up", "--detach")

    def worked() -> bool:
        if not is_up(NODES["nsqd1"]):
            return False
        topics = get(NODES["nsqd1"], f"/stats?format=json&topic={TOPIC}")["topics"] or []
        channels = [channel for topic in topics for channel in topic["channels"]]
        return len(channels) == 2 and all(it["message_count"] > 0 and it["client_count"] == 1 for it in channels)

    eventually(worked, TIMEOUT)


def test_the_profile_with_a_pipeline(compose: Compose) -> None:
    """Spark lands each order once, also when it is killed in between."""
    compose("--profile", "pipeline", "build", timeout=BUILD_TIMEOUT)
    compose("--profile", "demo", "--profile", "pipeline", "up", "--detach")
    eventually(lambda: landed(compose)[0] > 0, SPARK_TIMEOUT)
    run("docker", "kill", compose.container("pipeline")["Id"])
    compose("--profile", "demo", "stop", "producer")
    compose("--profile", "pipeline", "start", "pipeline")
    published = sum(message_count(port) for port in NODES.values())
    eventually(lambda: landed(compose)[0] >= published, SPARK_TIMEOUT)
    assert landed(compose) == (published, published)


def landed(compose: Compose) -> tuple[int, int]:
    """Return the number of rows in the table, and of different messages; none while the table cannot be read."""
    ask = ("docker", "exec", compose.container("pipeline")["Id"], "python", "-c", COUNT)
    rows, _, messages = run(*ask, check=False).partition(" ")
    return int(rows or 0), int(messages or 0)


def message_count(port: int) -> int:
    topics = get(port, f"/stats?format=json&topic={TOPIC}")["topics"] or []
    return sum(topic["message_count"] for topic in topics)
