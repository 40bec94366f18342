"""Newer brokers than Debian 12 has: those that `scripts/bring-rivals` has put into build/rivals, and Debian's otherwise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from bench.ports import take_port
from bench.servers import Nats, NatsAlways, RabbitMq, Redis, Server
from bench.work import HOST, ROOT

RIVALS: Final = ROOT / "build" / "rivals"
JARS: Final = RIVALS / "kafka"
_ABSENT: Final = "is not here (scripts/bring-rivals brings it)"


def newest_nats() -> type[Nats]:
    return _BroughtNats if _BroughtNats.program_file().exists() else Nats


def newest_nats_always() -> type[NatsAlways]:
    return _BroughtNatsAlways if _BroughtNatsAlways.program_file().exists() else NatsAlways


def newest_rabbitmq() -> type[RabbitMq]:
    return _BroughtRabbitMq if _BroughtRabbitMq.is_there() else RabbitMq


class _BroughtNats(Nats):
    @classmethod
    def program_file(cls) -> Path:
        return RIVALS / "nats" / "nats-server"

    @classmethod
    def _found(cls) -> str:
        return str(cls.program_file())


class _BroughtNatsAlways(_BroughtNats, NatsAlways):
    """With `sync_interval: always`."""


class Valkey(Redis):
    program = "valkey-server"

    @classmethod
    def lacks(cls) -> str:
        return "" if cls._found() else f"Valkey 9.1 {_ABSENT}"

    @classmethod
    def version(cls) -> str:
        return super().version().replace("Redis", "Valkey")

    @classmethod
    def _found(cls) -> str:
        brought = RIVALS / "valkey" / cls.program
        return str(brought) if brought.exists() else super()._found()


class _BroughtRabbitMq(RabbitMq):
    """Debian 13's RabbitMQ, with an Erlang and a C library of its own."""

    _tree: ClassVar[Path] = RIVALS / "rabbitmq"
    _epmd_program: ClassVar[str] = str(_tree / "usr/lib/erlang/bin/epmd")

    @classmethod
    def is_there(cls) -> bool:
        return cls._home() is not None

    @classmethod
    def lacks(cls) -> str:
        return "" if cls.is_there() else f"RabbitMQ 4 {_ABSENT}"

    @classmethod
    def _home(cls) -> Path | None:
        return next((cls._tree / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"), None)

    @classmethod
    def version(cls) -> str:
        home = cls._home()
        assert home is not None
        return f"RabbitMQ {home.name.rpartition('-')[2]}"

    @property
    def command(self) -> Sequence[str]:
        return [f"{self._home()}/sbin/rabbitmq-server"]

    @property
    def environ(self) -> Mapping[str, str]:
        path = f"{self._tree}/usr/lib/erlang/bin{os.pathsep}{os.environ.get('PATH', '')}"
        return {**super().environ, "PATH": path}


class Kafka(Server):
    """A broker in KRaft mode that is its own controller, with the options of Java that its own script has."""

    program = "Kafka"
    protocol = "kafka"
    warm_up = 3.0  # Java compiles what it has run for a while
    # ApiVersions 0 of a client without a name, which Kafka answers once it serves
    _greeting = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
    _java: ClassVar[Sequence[str]] = (
        *("-server", "-Xms1G", "-Xmx1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
        *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._data = folder / "data"
        self._properties = folder / "server.properties"
        controller = take_port()
        self._properties.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@{HOST}:{controller}\n"
            f"listeners=PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={self._data}\n"
            # One node has no others for the copies that the defaults ask for.
            "offsets.topic.replication.factor=1\n"
            "share.coordinator.state.topic.replication.factor=1\n"
            "share.coordinator.state.topic.min.isr=1\n"
        )

    @classmethod
    def lacks(cls) -> str:
        if not any(JARS.glob("kafka_*.jar")):
            return f"Kafka 4.4 {_ABSENT}"
        lacking = [name for name in ("java", "javac") if shutil.which(name) is None]
        return f"Kafka 4.4 needs {' and '.join(lacking)}" if lacking else ""

    @classmethod
    def version(cls) -> str:
        asked = subprocess.run(cls._run("kafka.Kafka", "--version"), capture_output=True, text=True, check=True)
        found = re.search(r"^\d\S*", asked.stdout, re.MULTILINE)
        return f"Kafka {found[0] if found else asked.stdout.strip()}"

    @property
    def command(self) -> Sequence[str]:
        return self._run("kafka.Kafka", str(self._properties), options=self._java)

    @classmethod
    def _run(cls, program: str, *words: str, options: Sequence[str] = ()) -> Sequence[str]:
        return ["java", *options, "-cp", f"{JARS}/*", program, *words]

    def launch(self) -> None:
        if not self._data.exists():
            words = ("format", "--cluster-id=bmVpdGhlciBNIG5vciBX", f"--config={self._properties}")
            subprocess.run(self._run("kafka.tools.StorageTool", *words), capture_output=True, check=True)
        super().launch()
