"""The brokers under job queues, each a process of ours on free ports that can be killed and started again.

Each is as durable as its documentation recommends for jobs that must not be lost:

    nsqd       its defaults: a publish is answered when it has been written (--ack written)
    Redis      appendonly yes, appendfsync everysec (https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/)
    RabbitMQ   durable queues, persistent messages and publisher confirms; these are the library's part

A kill -9 leaves the page cache alone, so all three keep what they have written.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from bench.ports import take_port
from bench.work import HOST, ROOT, Failed
from nsqcommon.version import suite_version

START_LIMIT: Final = 120.0
_HOUR: Final = 3600.0
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


class Process:
    """A process in a session of its own. It dies with all that it has started, and with the thread that started it."""

    def __init__(
        self, command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None, **user: Any
    ) -> None:
        """Start a process, perhaps as another `user`, with what Popen knows of users."""
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                **user,
            )
        self.pid = self._process.pid
        self.began = time.monotonic()

    @property
    def status(self) -> int | None:
        """Return the exit status. None: it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the whole session with SIGKILL, as the end of a container or of a machine does."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def stop(self, seconds: float) -> None:
        """End the process with SIGTERM, and kill what is left of its session."""
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A broker. `launch` does not wait, so that its caller can do other things while the broker starts."""

    program: ClassVar[str]  # without which it cannot run

    def __init__(self, folder: Path, *, speed: float = 1.0, python: Sequence[str] = (sys.executable,)) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.txt"
        self.port = take_port()
        self._speed = speed
        self._python = python
        self._process: Process | None = None

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def command(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def environ(self) -> Mapping[str, str]:
        return {}

    @classmethod
    def is_there(cls) -> bool:
        return shutil.which(cls.program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is not None

    @classmethod
    def version(cls) -> str:
        """Return what the program says of itself."""
        asked = subprocess.run([cls.program, "--version"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    def answers(self) -> bool:
        raise NotImplementedError

    def left(self) -> int:
        """Return how many jobs the broker still holds."""
        raise NotImplementedError

    # From start to end

    def __enter__(self) -> Self:
        if not self.is_there():
            raise Failed(f"this needs {self.program}, and the extra bench-jobs: scripts/setup dev,bench-jobs")
        try:
            self.launch()
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def launch(self) -> None:
        self._process = Process(self.command, self.log, self.environ)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_LIMIT
        while not self.is_ready:
            if time.monotonic() > end:
                raise Failed(f"{self.program} was not ready after {START_LIMIT:.0f} s\n{self.last_words}")
            time.sleep(0.01)

    @property
    def is_ready(self) -> bool:
        if self._process is None:
            return False
        if self._process.status is not None:
            raise Failed(f"{self.program} ended with status {self._process.status}\n{self.last_words}")
        return self.answers()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:]) if self.log.is_file() else ""

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def close(self) -> None:
        self.kill()


class Nsqd(Server):
    program = sys.executable

    def __init__(self, folder: Path, *, speed: float = 1.0, python: Sequence[str] = (sys.executable,)) -> None:
        super().__init__(folder, speed=speed, python=python)
        self._http_port = take_port()

    @property
    def url(self) -> str:
        return f"nsq://{HOST}:{self.port}"

    @property
    def command(self) -> Sequence[str]:
        (self.folder / "data").mkdir(exist_ok=True)
        return [
            *(*self._python, "-m", "nsqd", f"--data-path={self.folder / 'data'}", "--log-level=warn"),
            *(f"--tcp-address={HOST}:{self.port}", f"--http-address={HOST}:{self._http_port}"),
            # An hour, as the default is: longer delays pass through a worker, so the run has some of these.
            f"--max-req-timeout={_HOUR / self._speed:.3f}s",
        ]

    @classmethod
    def version(cls) -> str:
        return f"nsq-suite {suite_version()}"

    def answers(self) -> bool:
        try:
            return self._get("/ping") == b"OK"
        except OSError:
            return False

    def left(self) -> int:
        found = json.loads(self._get("/stats?format=json&include_clients=false"))["topics"]
        topics = [it for it in found if not it["topic_name"].endswith("#ephemeral")]  # Celery's events to monitors
        channels = [channel for topic in topics for channel in topic["channels"]]
        counts = ("depth", "in_flight_count", "deferred_count")
        return sum(int(it[count]) for it in channels for count in counts) + sum(int(it["depth"]) for it in topics)

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{HOST}:{self._http_port}{path}", timeout=5) as answer:
            return bytes(answer.read())


class Redis(Server):
    program = "redis-server"

    @classmethod
    def is_there(cls) -> bool:
        return super().is_there() and find_spec("redis") is not None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def command(self) -> Sequence[str]:
        return [
            *("redis-server", "--port", str(self.port), "--bind", HOST, "--dir", str(self.folder)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
        ]

    def answers(self) -> bool:
        try:
            return self.ask("PING") == b"+PONG"
        except OSError:
            return False

    def left(self) -> int:
        import redis  # of the extra `bench-jobs`

        client = redis.Redis(HOST, self.port, decode_responses=True)
        keys: Iterable[Any] = client.scan_iter(count=1000)
        return sum(_jobs_of(client, key) for key in keys)

    def ask(self, command: str) -> bytes:
        """Return the first line of the answer."""
        with socket.create_connection((HOST, self.port), timeout=5) as connection:
            connection.sendall(command.encode() + b"\r\n")
            return connection.recv(65536).partition(b"\r\n")[0]


def _jobs_of(client: Any, key: str) -> int:
    """Return how many jobs a key holds that are not in another key as well."""
    kind = client.type(key)
    if key.startswith("schedule:"):  # taskiq's: ids by minute, and the schedules themselves
        return int(key.startswith("schedule:data:"))
    if key.startswith("dramatiq:"):  # ids, and the messages themselves
        return int(client.hlen(key)) if kind == "hash" else 0
    if kind == "stream":  # taskiq's
        return sum(int(group["pending"]) + int(group["lag"] or 0) for group in client.xinfo_groups(key))
    if kind == "list":  # Celery's queues
        return int(client.llen(key))
    return int(client.hlen(key)) if key == "unacked" else 0


class RabbitMq(Server):
    """A RabbitMQ, with a directory of Erlang nodes (epmd) of its own."""

    program = "rabbitmq-server"
    _script: ClassVar[str] = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # Debian's own asks to be root

    def __init__(self, folder: Path, *, speed: float = 1.0, python: Sequence[str] = (sys.executable,)) -> None:
        super().__init__(folder, speed=speed, python=python)
        self._distribution_port, self._epmd_port = take_port(), take_port()
        self._epmd: Process | None = None
        (folder / "home").mkdir(exist_ok=True)
        (folder / "plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = {HOST}:{self.port}\n"
            # Half an hour, as the default is. RabbitMQ looks once a minute, and more often if it is to be shortened.
            f"consumer_timeout = {_HOUR / 2 / self._speed * 1000:.0f}\n"
        )
        tick = f"{{channel_tick_interval, {60 / self._speed * 1000:.0f}}}"
        (folder / "advanced.config").write_text(f"[{{rabbit, [{tick}]}}].\n")

    @classmethod
    def is_there(cls) -> bool:
        return os.access(cls._script, os.X_OK)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/%2F"

    @property
    def command(self) -> Sequence[str]:
        return [self._script]

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder / "home"),
            "RABBITMQ_NODENAME": f"jobs-{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "ERL_CRASH_DUMP": str(self.folder / "erl_crash.dump"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
        }

    @classmethod
    def version(cls) -> str:
        # rabbitmqctl would leave an epmd behind, so the name of the installation's folder has to do.
        folder = next(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"), None)
        return f"RabbitMQ {folder.name.rpartition('-')[2]}" if folder is not None else "RabbitMQ"

    def launch(self) -> None:
        if self._epmd is None:
            command = ["epmd", "-port", str(self._epmd_port), "-address", HOST]
            self._epmd = Process(command, self.folder / "epmd.txt")
        super().launch()

    def answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(connection.recv(8))
        except OSError:
            return False

    def left(self) -> int:
        asked = subprocess.run(
            ["/usr/lib/rabbitmq/bin/rabbitmqctl", "--quiet", "--no-table-headers", "list_queues", "messages"],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=START_LIMIT,
        )
        if asked.returncode:
            raise Failed(f"rabbitmqctl: {asked.stderr or asked.stdout}")
        return sum(int(line) for line in asked.stdout.split() if line.isdigit())

    def close(self) -> None:
        super().close()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd = None


# How a broker is used is the app's part: celery_app.py and its like tell the last two of each kind apart.
SERVERS: Final[Mapping[str, type[Server]]] = {
    "nsq": Nsqd,
    "redis": Redis,
    "redis-long": Redis,  # a visibility timeout as long as the longest ETA
    "rabbitmq": RabbitMq,  # quorum queues
    "rabbitmq-classic": RabbitMq,
}
