"""Real nsqd, nsqlookupd and nsqadmin processes for tests. A test can query, stop and kill them, and read their logs.

with Nsqd(tmp_path / "data") as nsqd:
    nsqd.connect().publish("topic", b"body")
"""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self
from urllib.parse import quote

import pytest

from bench.ports import HOST, take_port
from tests.support import forked
from tests.support.client import TIMEOUT, Client, open_socket

ROOT: Final = Path(__file__).resolve().parents[2]
# scripts/test-compiled names the interpreter of another installation. Then that installation runs, not this tree.
PYTHON: Final = os.environ.get("NSQ_TEST_PYTHON", sys.executable)
SOURCES: Final = os.pathsep.join((str(ROOT), str(ROOT / "common")))
PYTHONPATH: Final = "" if "NSQ_TEST_PYTHON" in os.environ else SOURCES
STARTS_AGAIN: Final = "starting again as a standby"  # in the log of an owner that has lost its name
START_TIMEOUT: Final = 100.0  # seconds; includes recovery on a slow machine
# For an nsqadmin none of whose nodes hangs. By itself it takes a node for silent after 5 s, which a busy machine may need.
PATIENT: Final = "http-client-request-timeout=100s"
STOP_TIMEOUT: Final = 30.0

_LISTENING: Final = re.compile(r"(TCP|HTTPS?): listening on (?:(\[[\da-f:]*\]|[\d.]+):(\d+)|(/.*))$")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Process:
    """One process. It may be stopped and started again; the log continues."""

    program: ClassVar[str]  # its name in messages

    def __init__(self) -> None:
        self._process: subprocess.Popen[Any] | None = None

    def start(self) -> Self:
        raise NotImplementedError

    @property
    def log(self) -> str:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process with a signal, and return its exit status."""
        self.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for a process that ends by itself, and return its exit status."""
        try:
            return self._running.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.program} did not end\n{self.log}") from None

    def kill(self) -> None:
        """Kill the process with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self.wait()
            self._process = None

    def send_signal(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _running(self) -> subprocess.Popen[Any]:
        assert self._process is not None, "not running"
        return self._process


class Daemon(Process):
    """One `python -m program`."""

    speaks_tcp = True  # besides HTTP

    def __init__(self, *options: str, environ: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.options = options
        self.tcp: tuple[str, int] = ("", 0)  # the address that its log names
        self.http_address: tuple[str, int] = ("", 0)
        self.https_address: tuple[str, int] = ("", 0)  # only with --https-address
        self.under: Sequence[str] = ()  # a command that runs the daemon, such as prlimit
        self.command: Sequence[str] = ()  # an installed one, instead of `python -m program`
        self._environ = environ or {}
        self._collector: threading.Thread | None = None
        self._lines: list[str] = []
        self._spoke = threading.Condition()

    def _arguments(self) -> Sequence[str]:
        """Return the arguments that the daemon always needs, before the options."""
        raise NotImplementedError

    # From start to end

    def start(self) -> Self:
        """Start the daemon, and return when it can be reached. Raise AssertionError with the log if it cannot."""
        seen = len(self._lines)
        self._process = launch(
            *self._arguments(),
            *(f"--{option}" for option in self.options),
            environ=self._environ,
            program=self.program,
            under=self.under,
            command=self.command,
        )
        self._collector = threading.Thread(target=self._collect, args=(self._process,))
        self._collector.start()
        if self.speaks_tcp:
            self.tcp = self._wait_for_address("TCP", seen)
        self.http_address = self._wait_for_address("HTTP", seen)
        if any(option.startswith("https-address=127") for option in self.options):
            self.https_address = self._wait_for_address("HTTPS", seen)
        return self

    def wait(self) -> int:
        status = super().wait()
        assert self._collector is not None
        self._collector.join(STOP_TIMEOUT)
        assert self._running.stderr is not None
        self._running.stderr.close()
        self._process = None
        return status

    def restart(self) -> Self:
        """Stop the daemon, and start it again with the same options."""
        status = self.stop()
        assert status == 0, f"exit status {status}\n{self.log}"
        return self.start()

    # Its log

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with self._spoke:
                self._lines.append(line.rstrip("\n"))
                self._spoke.notify_all()
        with self._spoke:
            self._lines.append("(end of log)")
            self._spoke.notify_all()

    @property
    def log(self) -> str:
        return "\n".join(self._lines)

    def _wait_for_address(self, kind: str, seen: int) -> tuple[str, int]:
        deadline = time.monotonic() + START_TIMEOUT
        with self._spoke:
            while True:
                for line in self._lines[seen:]:
                    if (match := _LISTENING.search(line)) and match[1] == kind:
                        return (match[4], -1) if match[4] else (match[2], int(match[3]))
                ended = self._lines[-1:] == ["(end of log)"] and len(self._lines) > seen
                if ended or not self._spoke.wait(deadline - time.monotonic()):
                    raise AssertionError(f"{self.program} does not listen for {kind}\n{self.log}")

    # Talking to it

    def http(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """Send one request on a connection of its own, over HTTPS with `tls`."""
        host, port = self.http_address if tls is None else self.https_address
        connection = http.client.HTTPConnection(host if port >= 0 else "localhost", max(port, 0), timeout=timeout)
        try:
            sock = open_socket((host, port))
            sock.settimeout(timeout)
            connection.sock = sock if tls is None else tls.wrap_socket(sock, server_hostname=host)
            connection.request(method, path, body, headers=dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, {name.lower(): it for name, it in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: bytes = b"") -> None:
        """Send a POST that the test takes for granted: fail unless the answer is 200."""
        answer = self.http("POST", path, body)
        assert answer.status == 200, (path, answer)

    # What it costs

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time of all its threads, including those that have ended, in steps of 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def unread_bytes(self) -> int:
        """Return how many bytes wait at its TCP port that it has not read, on all connections together."""
        return _unread_at(self.tcp[1])

    @property
    def has_unread_requests(self) -> bool:
        """Return whether somebody has asked something at its HTTP port that it has not read."""
        return _unread_at(self.http_address[1]) > 0

    def limit_file_size(self, size: int | None) -> None:
        """Let every write beyond `size` in any file fail with EFBIG, as Python ignores SIGXFSZ. None: no limit."""
        soft = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))


def _unread_at(port: int) -> int:
    """Return the bytes that wait at a port; at a port that listens, connections that nobody has accepted count, too."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(it[4].partition(":")[2], 16) for it in lines if it[1].endswith(f":{port:04X}"))


class Nsqd(Daemon):
    """One nsqd at one data path.

    `options` are flags without their dashes: `Nsqd(path, "mem-queue-size=0")`.
    """

    program = "nsqd"

    def __init__(self, data_path: Path, *options: str, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(*options, environ=environ)
        self.data_path = data_path
        self._clients = ExitStack()
        self._seen_waiting = 0  # lines of the log before it began to wait

    def _arguments(self) -> Sequence[str]:
        self.data_path.mkdir(parents=True, exist_ok=True)
        addresses = (f"--{kind}-address=127.0.0.1:0" for kind in ("tcp", "http", "https"))  # HTTPS only with --tls-cert
        return f"--data-path={self.data_path}", *addresses

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.close()
        super().__exit__(kind, error, trace)

    def connect(self, *, magic: bytes = b"  V2") -> Client:
        """Connect a new client. It is closed together with this object, if not before."""
        return self._clients.enter_context(Client(self.tcp, magic=magic))

    # A standby

    def start_waiting(self) -> Self:
        """Start a standby, and return when it serves HTTP. It listens for TCP when it owns its name."""
        self._seen_waiting = len(self._lines)
        self.speaks_tcp = False
        return self.start()

    def wait_until_serving(self) -> Self:
        """Wait until a standby listens for TCP."""
        self.tcp = self._wait_for_address("TCP", self._seen_waiting)
        return self

    def wait_until_lost(self, seen: int) -> None:
        """Wait until an owner says that it starts again, as a standby. Its log had `seen` lines before."""
        with self._spoke:
            lines = self._lines
            assert self._spoke.wait_for(lambda: STARTS_AGAIN in "\n".join(lines[seen:]), START_TIMEOUT), self.log
            self._seen_waiting = next(at for at in range(seen, len(lines)) if STARTS_AGAIN in lines[at])

    def wait_until_waiting(self) -> Self:
        """Wait until it has started again. From now on, requests go to its new HTTP address."""
        self.http_address = self._wait_for_address("HTTP", self._seen_waiting)
        return self

    @property
    def seen(self) -> int:
        """How many lines its log has."""
        return len(self._lines)

    @property
    def remote_state(self) -> str:
        """Return what it says that it is to its copy in a store; "" if it doesn't answer."""
        try:
            answer = self.http("GET", "/remote")
        except OSError:
            return ""
        return str(answer.json["state"]) if answer.status == 200 else ""

    def stats(self, topic: str = "") -> Any:
        return self.http("GET", f"/stats?format=json&topic={quote(topic)}").json

    def topic(self, topic: str) -> Any:
        """Return the topic's part of /stats, or None."""
        return next(iter(self.stats(topic)["topics"] or ()), None)

    def channel(self, topic: str, channel: str = "c") -> Any:
        """Return the channel's part of /stats, or None."""
        found = self.topic(topic)
        return next((it for it in found["channels"] if it["channel_name"] == channel), None) if found else None


class SteadyNsqd(Nsqd):
    """An nsqd that has the same ports when it is started again. Until the end of its block nobody else gets them."""

    _ports = (0, 0)  # for TCP, and for HTTP

    def __enter__(self) -> Self:
        self._ports = take_port(self._clients), take_port(self._clients)
        return super().__enter__()

    def _arguments(self) -> Sequence[str]:
        tcp, http = self._ports
        return (*super()._arguments(), f"--tcp-address={HOST}:{tcp}", f"--http-address={HOST}:{http}")


class _Steady(Daemon):
    """A daemon that has the same ports when it is started again. Until the end of its block nobody else gets them."""

    def __init__(self, *options: str, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(*options, environ=environ)
        self._ports = ExitStack()

    def __enter__(self) -> Self:
        self.tcp = (HOST, take_port(self._ports) if self.speaks_tcp else 0)
        self.http_address = (HOST, take_port(self._ports))
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._ports.close()


class Nsqlookupd(_Steady):
    """One nsqlookupd."""

    program = "nsqlookupd"

    def _arguments(self) -> Sequence[str]:
        return (
            f"--tcp-address=127.0.0.1:{self.tcp[1]}",
            f"--http-address=127.0.0.1:{self.http_address[1]}",
            "--broadcast-address=127.0.0.1",
        )

    def get(self, path: str) -> Any:
        """Return the document of an answer whose status is 200, or None."""
        answer = self.http("GET", path)
        return answer.json if answer.status == 200 else None

    def producers(self, topic: str) -> set[int]:
        """Return the TCP ports of the producers that `/lookup` returns."""
        found = self.get(f"/lookup?topic={quote(topic)}")
        return {producer["tcp_port"] for producer in found["producers"]} if found else set()


class Nsqadmin(_Steady):
    """One nsqadmin."""

    program = "nsqadmin"
    speaks_tcp = False

    def _arguments(self) -> Sequence[str]:
        return (f"--http-address=127.0.0.1:{self.http_address[1]}",)

    def json(self, method: str, path: str, document: object = None, **headers: str) -> Answer:
        """Send a request as scripts do, and return the answer."""
        body = None if document is None else json.dumps(document).encode()
        return self.http(method, path, body, headers={name.replace("_", "-"): it for name, it in headers.items()})


def launch(
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    program: str = "nsqd",
    folder: Path | None = None,
    under: Sequence[str] = (),
    command: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start `python -m program`, or another command, with its stderr in a pipe."""
    return forked.Popen(
        [*under, *(command or (PYTHON, "-P", "-m", program)), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1", **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
    )


def run_to_end(
    *arguments: str, environ: Mapping[str, str] | None = None, program: str = "nsqd", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m program`, which is expected to end by itself. Raise AssertionError with its words if it doesn't."""
    try:
        return forked.run(
            [PYTHON, "-P", "-m", program, *arguments],
            # The same variables as in `launch`, because each set of them has a zygote of its own.
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1", **(environ or {})},
            cwd=folder,
            text=True,
            timeout=START_TIMEOUT,
        )
    except subprocess.TimeoutExpired as late:  # has what was said as bytes, in spite of `text`
        said = b"".join(it for it in (late.stdout, late.stderr) if it).decode(errors="backslashreplace")
        raise AssertionError(f"{program} {' '.join(arguments)} did not end\n{said}") from None


def needs_module(name: str) -> None:
    """Skip the test, or the whole file, if the daemons' installation lacks the module.

    The installation of scripts/compile has no extras.
    """
    if not _has_module(name):
        pytest.skip(f"the installation that is tested has no {name}", allow_module_level=True)


@cache
def _has_module(name: str) -> bool:
    if sys.executable == PYTHON:
        return find_spec(name) is not None
    return not subprocess.run([PYTHON, "-c", f"import {name}"], stderr=subprocess.DEVNULL, check=False).returncode


def eventually(condition: Any, timeout: float = TIMEOUT) -> Any:
    """Return the first true value of `condition()`. Raise AssertionError if there is none in time.

    The longer you have waited, the longer is the pause before the next question, because most questions cost an answer of
    a busy daemon. So you learn of it a tenth of the time late, and never more than a tenth of a second.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < timeout, "did not come true in time"
        time.sleep(min(max(waited / 10, 0.01), 0.1))  # another process gives no event to wait for
    return value
