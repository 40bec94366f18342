"""The brokers beside which ours is measured, and ours among them: processes on free ports, data in a folder of their own."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from bench.ports import take_port
from bench.sessions import megabytes
from bench.work import HOST, RIVALS, ROOT, Failed
from nsqcommon.version import suite_version

if TYPE_CHECKING:
    from bench.peers.loader import Loader

START_LIMIT: Final = 120.0
STOP_LIMIT: Final = 60.0
COPY_LIMIT: Final = 120.0
_HALF_AN_HOUR: Final = 1800.0
_OF_PIP: Final = str(Path(sys.executable).parent)  # nats-server is there
_PATH: Final = os.pathsep.join((str(RIVALS / "bin"), os.environ.get("PATH", ""), "/usr/sbin", _OF_PIP))
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
    """A broker that can be killed, stopped, and started again on the same data.

    `launch` does not wait, so that its caller can do other things while the broker starts.
    """

    program: ClassVar[str]  # without which it cannot run
    protocol: ClassVar[str] = ""  # of `bench/peers/load`
    kind: str = ""  # of an AMQP queue
    warm_up: ClassVar[float] = 0.0  # seconds of the same kind of work before each second of a load
    _greeting: ClassVar[bytes] = b""

    def __init__(self, folder: Path, *, speed: float = 1.0, python: Sequence[str] = (sys.executable,)) -> None:
        """Know a folder. Who can shorten a broker's waits divides them by the speed; ours runs with this Python."""
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.txt"
        self.port = take_port()
        self._process: Process | None = None

    @property
    def command(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def environ(self) -> Mapping[str, str]:
        return {}

    @property
    def url(self) -> str:
        raise NotImplementedError

    def left(self) -> int:
        """Return how many jobs the broker still holds."""
        raise NotImplementedError

    @classmethod
    def lacks(cls) -> str:
        """Return why it cannot run here. Empty: it can."""
        return "" if cls._found() else f"{cls.program} is not installed"

    @classmethod
    def version(cls) -> str:
        """Return what the program says of itself."""
        asked = subprocess.run([cls._found(), "--version"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    @classmethod
    def _found(cls) -> str:
        return shutil.which(cls.program, path=_PATH) or ""

    def answers(self) -> bool:
        """Return whether it greets a client."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(self._greeting)
                return self._is_greeted(connection.recv(4096))
        except OSError:
            return False

    def _is_greeted(self, said: bytes) -> bool:
        return bool(said)

    def depth(self, loader: Loader, queue: str) -> int:
        return int(loader.run("depth", self, queue, at_most=60)["depth"])

    @property
    def megabytes(self) -> float:
        """Return the proportional set size of all its processes."""
        return megabytes(self.pid)

    # From start to end

    def __enter__(self) -> Self:
        if why := self.lacks():
            raise Failed(why)
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

    def stop_cleanly(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_LIMIT)
            self._process = None

    def close(self) -> None:
        self.kill()


class Nsq(Server):
    """An nsqd, whoever has written it: they share options, HTTP and protocol."""

    protocol = "nsq"

    def __init__(self, folder: Path, run: Sequence[str], flags: Sequence[str]) -> None:
        super().__init__(folder)
        self._http_port = take_port()
        self._run = run
        self._flags = flags

    @property
    def command(self) -> Sequence[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        return [
            *(*self._run, f"--data-path={data}", "--log-level=warn"),
            *(f"--tcp-address={HOST}:{self.port}", f"--http-address={HOST}:{self._http_port}", *self._flags),
        ]

    def answers(self) -> bool:
        try:
            return self._get("/ping") == b"OK"
        except OSError:
            return False

    def depth(self, loader: Loader, queue: str) -> int:
        return sum(int(it["depth"]) + int(it["in_flight_count"]) for it in self._topic(queue)["channels"])

    def _topic(self, name: str) -> Any:
        (topic,) = json.loads(self._get(f"/stats?format=json&include_clients=false&topic={name}"))["topics"]
        return topic

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{HOST}:{self._http_port}{path}", timeout=5) as answer:
            return bytes(answer.read())


class Nsqd(Nsq):
    program = sys.executable

    def __init__(self, folder: Path, python: Sequence[str], flags: Sequence[str]) -> None:
        super().__init__(folder, (*python, "-m", "nsqd"), flags)

    @classmethod
    def version(cls) -> str:
        return f"nsq-suite {suite_version()}"


class GoNsqd(Nsq):
    """The original. `go_nsqd` makes one of a binary."""

    program = ""

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder, (self._found(),), flags)

    @classmethod
    def lacks(cls) -> str:
        return (
            super().lacks()
            if cls.program
            else "its binary was not named (--go-nsqd FILE, or its folder in NSQ_ORIGINAL)"
        )

    @classmethod
    def version(cls) -> str:
        found = re.search(r"nsqd v(\S+)", super().version())
        return f"Go nsqd {found[1]}" if found else super().version()

    def depth(self, loader: Loader, queue: str) -> int:
        """Return it once the topic has copied all its messages to its channel: one that is being copied counts in neither."""
        deadline = time.monotonic() + COPY_LIMIT
        while left := int(self._topic(queue)["depth"]):
            if time.monotonic() > deadline:
                raise Failed(f"Go's nsqd still has {left:,} messages to copy to the channel after {COPY_LIMIT:.0f} s")
            time.sleep(0.05)
        return super().depth(loader, queue)


def go_nsqd(binary: str) -> type[GoNsqd]:
    """Return the kind of server that the binary is. Empty: one that is not there."""

    class Named(GoNsqd):
        program = binary

    return Named


class Redis(Server):
    program = "redis-server"
    protocol = "redis"

    def __init__(self, folder: Path, *durability: str) -> None:
        super().__init__(folder)
        self._durability = durability

    @property
    def command(self) -> Sequence[str]:
        return [
            *(self._found(), "--port", str(self.port), "--bind", HOST, "--dir", str(self.folder)),
            *self._durability,
        ]

    _greeting = b"PING\r\n"

    def _is_greeted(self, said: bytes) -> bool:
        return said.startswith(b"+PONG")  # and not -LOADING

    @classmethod
    def version(cls) -> str:
        found = re.search(r"v=(\S+)", super().version())
        return f"Redis {found[1]}" if found else super().version()


class Nats(Server):
    program = "nats-server"
    protocol = "nats"

    def __init__(self, folder: Path, *settings: str) -> None:
        super().__init__(folder)
        lines = [f'store_dir: "{folder / "data"}"', *settings]
        config = f'listen: "{HOST}:{self.port}"\njetstream {{\n' + "".join(f"  {line}\n" for line in lines) + "}\n"
        (folder / "nats.conf").write_text(config)

    @property
    def command(self) -> Sequence[str]:
        return [self._found(), "--config", str(self.folder / "nats.conf")]

    @classmethod
    def version(cls) -> str:
        return super().version().replace("nats-server: v", "NATS ")

    def _is_greeted(self, said: bytes) -> bool:
        return said.startswith(b"INFO ") and b'"jetstream":true' in said


class NatsAlways(Nats):
    """With `sync_interval: always`, which came with 2.10."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "sync_interval: always")

    @classmethod
    def lacks(cls) -> str:
        return super().lacks() or cls._lacks_setting()

    @classmethod
    def _lacks_setting(cls) -> str:
        number = re.search(r"(\d+)\.(\d+)", cls.version())
        if number and (int(number[1]), int(number[2])) >= (2, 10):
            return ""
        return f"{cls.version()} has no `sync_interval`, which came with 2.10"


class RabbitMq(Server):
    """A RabbitMQ, with a directory of Erlang nodes (epmd) of its own."""

    program = "rabbitmq-server"
    protocol = "amqp"
    _greeting = b"AMQP\x00\x00\x09\x01"
    _script: ClassVar[str] = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # Debian's own asks to be root

    def __init__(self, folder: Path, kind: str = "", *, speed: float = 1.0) -> None:
        """Configure a node. `kind` is that of its queues; waits of RabbitMQ's are divided by the speed."""
        super().__init__(folder)
        self.kind = kind
        self._distribution_port, self._epmd_port = take_port(), take_port()
        self._epmd: Process | None = None
        (folder / "home").mkdir(exist_ok=True)
        (folder / "plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = {HOST}:{self.port}\n"
            # Half an hour, as the default is. RabbitMQ looks once a minute, and more often if it is to be shortened.
            f"consumer_timeout = {_HALF_AN_HOUR / speed * 1000:.0f}\n"
        )
        tick = f"{{channel_tick_interval, {60 / speed * 1000:.0f}}}"
        (folder / "advanced.config").write_text(f"[{{rabbit, [{tick}]}}].\n")

    @classmethod
    def lacks(cls) -> str:
        return "" if os.access(cls._script, os.X_OK) else f"{cls.program} is not installed"

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

    @classmethod
    def flushes_classic_queues(cls) -> bool:
        """Return whether a message in a classic queue is flushed before it is confirmed."""
        found = re.search(r" (\d+)", cls.version())
        return found is None or int(found[1]) < 4

    @property
    def _epmd_program(self) -> str:
        return "epmd"

    def launch(self) -> None:
        if self._epmd is None:
            command = [self._epmd_program, "-port", str(self._epmd_port), "-address", HOST]
            self._epmd = Process(command, self.folder / "epmd.txt")
        super().launch()

    def close(self) -> None:
        super().close()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd = None


class Beanstalkd(Server):
    program = "beanstalkd"
    protocol = "beanstalk"

    def __init__(self, folder: Path, *flags: str, has_log: bool = True) -> None:
        super().__init__(folder)
        (folder / "data").mkdir(exist_ok=True)
        self._flags = (*(("-b", str(folder / "data")) if has_log else ()), *flags)

    @property
    def command(self) -> Sequence[str]:
        return [self._found(), "-l", HOST, "-p", str(self.port), *self._flags]

    @classmethod
    def version(cls) -> str:
        asked = subprocess.run([cls._found(), "-v"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    _greeting = b"list-tubes\r\n"

    def _is_greeted(self, said: bytes) -> bool:
        return said.startswith(b"OK ")
