"""`scripts/demo`: one command starts a cluster with traffic, a node that dies comes back, Ctrl-C stops it all."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import trio

from bench.ports import hold, take_port, usable_ports
from scripts.demo_cluster import CHANNELS, RESTART_PAUSE, TOPIC, Cluster, Program, Running, create_channels, first_free
from scripts.demo_guard import MARK, Guard, marked
from tests.support.process import ROOT, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("NSQ_TEST_PYTHON" in os.environ, reason="it runs the ordinary installation"),
]

TIMEOUT = 60.0
TOPICS = {"invoices", "mails", "orders", "payments", "prints", "reminders", "shipments"}
LOADED = 90.0  # three nodes and six more processes on a busy machine


class Demo:
    def __init__(self, process: subprocess.Popen[str], cluster: Cluster) -> None:
        self.process = process
        self.cluster = cluster
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str) -> str:
        """Wait for the text, and return the last line that has it."""

        def found() -> str | None:
            assert self.process.poll() is None or self._reader.is_alive(), self.said
            return next((line for line in reversed(self.lines) if re.search(pattern, line)), None)

        try:
            return str(eventually(found, LOADED))
        except AssertionError:
            raise AssertionError(f"nothing like {pattern} was said:\n{self.said}") from None

    def ended(self) -> int:
        try:
            status = self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the demo did not end:\n{self.said}") from None
        self._reader.join(TIMEOUT)
        return status

    def ask(self, port: int, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT) as answer:
            return json.load(answer)

    def pid_of(self, port: int) -> int:
        """Return the id of the process that listens at this address."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if f"--tcp-address=127.0.0.1:{port}" in command:
                    return int(folder.name)
        raise AssertionError(f"nobody at {port}")


def free_shift(folder: Path) -> int:
    """Return a shift of ports that nobody else gets."""
    usable = usable_ports()
    while True:
        shift = random.randrange(0, usable.stop, 500)
        ports = Cluster(folder, shift, 1).ports
        if all(port in usable for port in ports) and hold(ports):
            return shift


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def running(folder: Path) -> Iterator[Demo]:
    shift = free_shift(folder)
    process = subprocess.Popen(
        [ROOT / "scripts" / "demo", f"--shift-ports={shift}", f"--folder={folder}", "--rate=20", "--trouble-after=1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    demo = Demo(process, Cluster(folder, shift, 100))
    try:
        yield demo
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                demo.ended()
            except AssertionError:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()


def sums(line: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"(\w+) (\d+)", line)}


def test_the_demo_from_start_to_end(tmp_path: Path) -> None:
    with running(tmp_path) as demo:
        demo.wait_for("^ready: ")
        ports = demo.cluster.nsqds
        for nsqlookupd in demo.cluster.nsqlookupds:
            eventually(lambda port=nsqlookupd + 1: producers(demo, port) == set(ports), LOADED)
        demo.wait_for(r"^published [1-9]\d*, ")
        eventually(lambda: set(demo.ask(demo.cluster.admin_port, "/api/topics")["topics"]) >= TOPICS, LOADED)
        demo.wait_for(r"^prints: acme [1-9]\d* done, .* others [1-9]\d* done")
        with urlopen(f"http://127.0.0.1:{demo.cluster.admin_port}/", timeout=TIMEOUT) as page:
            assert "<html" in page.read().decode()
        eventually(lambda: not missing_troubles(demo), LOADED)

        os.kill(demo.pid_of(ports[1]), signal.SIGKILL)
        demo.wait_for("nsqd2 ended .*signal 9.* started again")
        back = eventually(lambda: is_back(demo, ports[1] + 1), LOADED)
        assert back

        demo.process.send_signal(signal.SIGINT)
        assert demo.ended() == 0, demo.said
        assert "is killed" not in demo.said
        last = sums(demo.lines[-1])
        # Unconfirmed publishes to the killed node were repeated, so more may be finished than published.
        assert 0 < last["published"] <= min(last["billing"], last["shipping"]), demo.said
        assert all(is_free(port) for port in demo.cluster.ports), "something still listens"


def missing_troubles(demo: Demo) -> list[str]:
    """Return the troubles that nsqadmin doesn't show yet."""

    def channel(topic: str, name: str) -> Any:
        try:
            return demo.ask(demo.cluster.admin_port, f"/api/topics/{topic}/{name}")
        except HTTPError:  # it isn't there yet
            return dict.fromkeys(("depth", "in_flight_count", "requeue_count", "deferred_count", "message_count"), 0)

    labels, ledger, mails = channel("shipments", "labels"), channel("payments", "ledger"), channel("mails", "jobs")
    try:
        buried = demo.ask(demo.cluster.admin_port, "/api/v2/buried/invoices/mail")
    except HTTPError:
        buried = None
    there = {
        "a printer that jams": labels["depth"] > 0 and labels["in_flight_count"] > 0,
        "a bad release": ledger["requeue_count"] > 0,
        "buried invoices": "no address of customer" in str(buried),
        "reminders for later": channel("reminders", "send")["deferred_count"] > 0,
        "Celery tasks": mails["message_count"] > 0,
    }
    return [trouble for trouble, is_there in there.items() if not is_there]


def producers(demo: Demo, http_port: int) -> set[int]:
    """Return the TCP ports of the nodes that an nsqlookupd lists for the topic."""
    try:
        return {it["tcp_port"] for it in demo.ask(http_port, "/lookup?topic=orders")["producers"]}
    except HTTPError:  # 404: it knows no such topic yet
        return set()


def is_back(demo: Demo, http_port: int) -> bool:
    """Return whether the node has a consumer on each channel again, which finds it through discovery."""
    try:
        (topic,) = [it for it in demo.ask(http_port, "/stats?format=json")["topics"] if it["topic_name"] == "orders"]
    except OSError:
        return False
    return all(channel["client_count"] == 1 for channel in topic["channels"])


def test_what_does_not_start_ends_it_all(tmp_path: Path) -> None:
    data = tmp_path / "nsqd2"
    data.mkdir()
    somebody_elses = os.open(data, os.O_RDONLY)
    fcntl.flock(somebody_elses, fcntl.LOCK_EX)
    shift = free_shift(tmp_path)
    try:
        done = subprocess.run(
            [ROOT / "scripts" / "demo", f"--shift-ports={shift}", f"--folder={tmp_path}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    finally:
        os.close(somebody_elses)
    assert done.returncode == 1
    assert "demo: nsqd2 does not answer" in done.stdout
    assert "failed to lock data-path" in done.stdout
    assert all(is_free(port) for port in Cluster(tmp_path, shift, 1).ports)


def test_one_that_was_killed_can_be_stopped_before_it_is_started_again(tmp_path: Path) -> None:
    async def kill_and_stop() -> None:
        running = Running(Program("killed", ["sleep", "600"]), tmp_path, guard)
        async with trio.open_nursery() as nursery:
            await nursery.start(running.keep_alive)
            assert running._process is not None
            running._process.kill()
            await running._process.wait()
            with trio.fail_after(RESTART_PAUSE * 5):
                await running.stop()

    guard = Guard()
    trio.run(kill_and_stop)
    guard.close()


def test_kill_9_of_the_demo_leaves_nothing_running(tmp_path: Path) -> None:
    with running(tmp_path) as demo:
        eventually(lambda: not any(is_free(port) for port in demo.cluster.nsqds), LOADED)
        mark = mark_of(demo.pid_of(demo.cluster.nsqds[0]))
        assert len(marked(mark)) >= 5
        demo.process.kill()
        eventually(lambda: not marked(mark), LOADED)
        assert all(is_free(port) for port in demo.cluster.ports)
        eventually(lambda: not guards(mark), LOADED)


def test_the_guard_ends_workers_of_workers_those_that_ignore_signals_and_those_it_was_not_told_of(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    program = f"""
import subprocess, sys, time
from pathlib import Path
from scripts.demo_guard import Guard
guard = Guard(Path({str(folder)!r}))
deaf = "trap '' TERM HUP; (sleep 600 & setsid sleep 600) & while :; do sleep 600; done"
told = subprocess.Popen(["sh", "-c", deaf], start_new_session=True, env=guard.environment)
guard.watch(told.pid)
subprocess.Popen(["sleep", "600"], start_new_session=True, env=guard.environment)
print(guard.environment["NSQ_DEMO"], flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-P", "-c", program]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as demo:
        assert demo.stdout is not None
        mark = demo.stdout.readline().strip()
        eventually(lambda: len(marked(mark)) >= 5)
        demo.kill()
    eventually(lambda: not marked(mark), TIMEOUT)
    eventually(lambda: not guards(mark), TIMEOUT)
    assert not folder.exists()


def mark_of(pid: int) -> str:
    """Return the mark by which the guard of a demo knows its processes."""
    environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return next(it.partition("=")[2] for it in environ if it.startswith(f"{MARK}="))


def guards(mark: str) -> list[str]:
    """Return the processes that have the mark among their arguments."""
    return [it.parent.name for it in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in read_or_nothing(it)]


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_demo_beside_a_broker_moves_its_ports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual, other = (Cluster(tmp_path, free_shift(tmp_path), 1) for _ in range(2))
    with socket.create_server(("127.0.0.1", usual.nsqds[0])):
        assert first_free([usual, other]) is other
        assert first_free([usual]) is None
    assert first_free([usual, other]) is usual
    assert capsys.readouterr().out.splitlines() == [
        f"demo: in use: {usual.nsqds[0]}; all ports are moved by {other.shift}",
        f"demo: in use: {usual.nsqds[0]}; stop what listens there, or choose other ports with --shift-ports",
    ]


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    shift = free_shift(tmp_path)
    with socket.create_server(("127.0.0.1", 4150 + shift)):
        done = subprocess.run(
            [ROOT / "scripts" / "demo", f"--shift-ports={shift}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert done.returncode == 1
    assert f"in use: {4150 + shift};" in done.stdout


def test_an_nsqd_that_somebody_kills_during_the_start_is_waited_for(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for number in range(4):
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(1000).split()[1])
                if number:  # the first time it dies
                    connection.sendall(answer)

    http_port = take_port()  # a client of an earlier test may come back to one that the kernel gives
    with socket.create_server(("127.0.0.1", http_port)) as listener:
        nsqd = threading.Thread(target=serve, args=(listener,))
        nsqd.start()
        cluster = Cluster(tmp_path, 0, 1)
        cluster.nsqds = [http_port - 1]
        trio.run(create_channels, cluster)
        nsqd.join(TIMEOUT)
    topic, *channels = [
        f"/topic/create?topic={TOPIC}",
        *(f"/channel/create?topic={TOPIC}&channel={it}" for it in CHANNELS),
    ]
    assert [it.decode() for it in asked] == [topic, topic, *channels]
