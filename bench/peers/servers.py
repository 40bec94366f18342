"""The brokers, each a real process on a free port with its data in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from bench.builds import Build
from bench.jobs import servers
from bench.jobs.sessions import megabytes
from bench.peers.loader import Loader
from bench.ports import take_port
from bench.work import HOST, Failed
from nsqcommon.version import suite_version

STOP_LIMIT: Final = 60.0
COPY_LIMIT: Final = 120.0
_OF_PIP: Final = str(Path(sys.executable).parent)  # nats-server is there
_PATH: Final = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", _OF_PIP))


class Server(servers.Server):
    """A broker that can be killed, stopped, and started again on the same data."""

    protocol: ClassVar[str]
    kind: str = ""

    @classmethod
    def lacks(cls) -> str:
        """Return why it cannot be measured here. Empty: it can."""
        return "" if cls._found() else f"{cls.program} is not installed"

    @classmethod
    def is_there(cls) -> bool:
        return not cls.lacks()

    @classmethod
    def version(cls) -> str:
        asked = subprocess.run([cls._found(), "--version"], capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    @classmethod
    def _found(cls) -> str:
        return shutil.which(cls.program, path=_PATH) or ""

    @property
    def megabytes(self) -> float:
        """Return the proportional set size of all its processes."""
        return megabytes(self.pid)

    def stop_cleanly(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_LIMIT)
            self._process = None

    def depth(self, loader: Loader, queue: str) -> int:
        return int(loader.run("depth", self, queue, at_most=60)["depth"])

    def answers(self) -> bool:
        """Return whether it greets a client."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(self._greeting)
                return self._is_greeted(connection.recv(4096))
        except OSError:
            return False

    _greeting: ClassVar[bytes] = b""

    def _is_greeted(self, said: bytes) -> bool:
        return bool(said)


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

    def __init__(self, folder: Path, build: Build, flags: Sequence[str]) -> None:
        super().__init__(folder, (*build.python(), "-m", "nsqd"), flags)

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
        return super().lacks() if cls.program else "its binary was not named (--go-nsqd FILE)"

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


class RabbitMq(servers.RabbitMq, Server):
    """As for the job queues, with a kind of queue."""

    protocol = "amqp"

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self.kind = kind

    @classmethod
    def lacks(cls) -> str:
        return "" if os.access(cls._script, os.X_OK) else "rabbitmq-server is not installed"

    @classmethod
    def is_there(cls) -> bool:
        return not cls.lacks()


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
