"""The brokers that are measured: nsqd and the yardstick as fresh processes, or any broker that listens on a port."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import processes
from bench.builds import Build
from bench.ports import take_port
from bench.work import HERE, HOST, ROOT, Failed, Work, started

START_LIMIT: Final = 120.0
STOP_LIMIT: Final = 60.0
POLL: Final = 0.002


@dataclass(frozen=True)
class Broker:
    tcp_port: int
    http_port: int | None = None
    pid: int | None = None
    ready_after: float = 0.0  # seconds from the start of the process until it accepts and answers

    def get(self, path: str) -> bytes:
        return self._do("GET", path, b"")

    def post_all(self, paths: Sequence[str]) -> None:
        connection = self._connection()
        for path in paths:
            connection.request("POST", path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise Failed(f"POST {path}: {answer.status} {body!r}")
        connection.close()

    def post(self, path: str, body: bytes) -> None:
        self._do("POST", path, body)

    def _do(self, method: str, path: str, body: bytes) -> bytes:
        status, said = self.send(method, path, body)
        if status != 200:
            raise Failed(f"{method} {path}: {status} {said!r}")
        return said

    def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Send a request, and return the status and body of its answer, whatever they are."""
        connection = self._connection()
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def send_only(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Send a request, and read no more than the head of its answer, which may never end."""
        connection = self._connection()
        try:
            connection.request(method, path, headers=headers)
            connection.getresponse()
        finally:
            connection.close()

    def stats(self, topic: str = "") -> list[dict[str, Any]]:
        """Return the topics of `/stats`, without their clients."""
        query = "&topic=" + topic if topic else ""
        topics: list[dict[str, Any]] = json.loads(self.get(f"/stats?format=json&include_clients=false{query}"))[
            "topics"
        ]
        return topics

    def log(self, topic: str) -> dict[str, Any]:
        """Return the answer of `/topic/log`."""
        return dict(json.loads(self.get(f"/topic/log?topic={topic}")))

    def channel_depth(self, topic: str, channel: str) -> int:
        return int(self.channel(topic, channel)["depth"])

    def deferred(self, topic: str, channel: str) -> int:
        return int(self.channel(topic, channel)["deferred_count"])

    def make_channel(self, topic: str, channel: str = "ch") -> None:
        self.post_all([f"/topic/create?topic={topic}", f"/channel/create?topic={topic}&channel={channel}"])

    def processor_seconds(self) -> float:
        return processes.processor_seconds(self.pid)

    def forget(self, topic: str) -> None:
        """Delete the topic, if the broker outlives the run."""
        if self.pid is None and self.http_port is not None:
            self.post_all([f"/topic/delete?topic={topic}"])

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        for described in self.stats(topic):
            for one in described["channels"]:
                if described["topic_name"] == topic and one["channel_name"] == channel:
                    return dict(one)
        raise Failed(f"/stats knows no channel {topic}/{channel}")

    def _connection(self) -> http.client.HTTPConnection:
        if self.http_port is None:
            raise Failed("this needs the broker's HTTP port")
        return http.client.HTTPConnection(HOST, self.http_port, timeout=START_LIMIT)


# Each call of the factory starts a fresh process on an empty folder.
Factory = Callable[[], AbstractContextManager[Broker]]


def nsqd_factory(work: Work, build: Build, flags: Sequence[str] = (), tree: Path = ROOT) -> Factory:
    return partial(_fresh_nsqd, work, build, tuple(flags), tree)


def yardstick_factory(work: Work) -> Factory:
    return partial(_fresh_yardstick, work)


def external_factory(tcp_port: int, http_port: int | None = None) -> Factory:
    return partial(_external, tcp_port, http_port)


@contextmanager
def _fresh_nsqd(work: Work, build: Build, flags: Sequence[str], tree: Path) -> Iterator[Broker]:
    with work.new_folder("nsqd") as folder, running_nsqd(folder, build, flags, tree) as (broker, _):
        yield broker


@contextmanager
def _fresh_yardstick(work: Work) -> Iterator[Broker]:
    port = take_port()
    command = [sys.executable, str(HERE / "yardstick" / "broker.py"), str(port)]
    with work.new_folder("yardstick") as folder, started([*command, str(folder)]) as process:
        broker = Broker(port, pid=process.pid)
        _wait_until_ready(process, broker, Path("/dev/null"))
        yield broker


@contextmanager
def _external(tcp_port: int, http_port: int | None) -> Iterator[Broker]:
    yield Broker(tcp_port, http_port)


@contextmanager
def running_nsqd(
    folder: Path,
    build: Build,
    flags: Sequence[str] = (),
    tree: Path = ROOT,
    program: Sequence[str] = ("-m", "nsqd"),
) -> Iterator[tuple[Broker, subprocess.Popen[bytes]]]:
    """Run nsqd on this data path. It is killed at the end of the block unless `stop_cleanly` has stopped it.

    `program` is what Python runs.
    """
    tcp_port, http_port = take_port(), take_port()
    log_path = folder.with_suffix(".log")
    command = [
        *(*build.python(tree), *program, f"--data-path={folder}"),
        *(f"--tcp-address={HOST}:{tcp_port}", f"--http-address={HOST}:{http_port}", "--log-level=warn", *flags),
    ]
    with log_path.open("ab") as log:
        began = time.monotonic()
        with started(command, stdout=log, stderr=log, cwd=tree) as process:
            _wait_until_ready(process, Broker(tcp_port, http_port), log_path)
            yield Broker(tcp_port, http_port, process.pid, time.monotonic() - began), process


@contextmanager
def running_daemon(command: list[str], ports: Broker, log_path: Path) -> Iterator[int]:
    """Run another daemon, and yield its process id once it answers on its ports. It is killed at the end of the block."""
    with log_path.open("wb") as log, started(command, stdout=log, stderr=log) as process:
        _wait_until_ready(process, ports, log_path)
        yield process.pid


def stop_cleanly(process: subprocess.Popen[bytes]) -> float:
    """Send SIGTERM, and return the seconds until the process has ended."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        raise Failed(f"nsqd did not stop in {STOP_LIMIT:.0f} seconds") from None
    if status:
        raise Failed(f"nsqd ended with status {status}")
    return time.monotonic() - began


def _wait_until_ready(process: subprocess.Popen[bytes], broker: Broker, log: Path) -> None:
    end = time.monotonic() + START_LIMIT
    while time.monotonic() < end:
        if process.poll() is not None:
            raise Failed(f"the broker ended with status {process.returncode}\n{_tail(log)}")
        if _answers(broker):
            return
        time.sleep(POLL)
    raise Failed(f"the broker was not ready after {START_LIMIT:.0f} seconds\n{_tail(log)}")


def _answers(broker: Broker) -> bool:
    try:
        socket.create_connection((HOST, broker.tcp_port), timeout=START_LIMIT).close()
        return broker.http_port is None or broker.get("/ping") == b"OK"
    except (OSError, http.client.HTTPException):
        return False


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]) if log.is_file() else ""
