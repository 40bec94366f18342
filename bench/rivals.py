"""Brokers that Debian 12 lacks, or has in an older version. `scripts/bring-rivals` puts them into build/rivals."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from bench.ports import take_port
from bench.servers import RabbitMq, Redis, Server
from bench.work import HOST, RIVALS

_ABSENT: Final = "is not here (scripts/bring-rivals brings it)"


def newest_rabbitmq() -> type[RabbitMq]:
    return _BroughtRabbitMq if _BroughtRabbitMq.homes() else RabbitMq


class Valkey(Redis):
    program = "valkey-server"

    @classmethod
    def lacks(cls) -> str:
        return "" if cls._found() else f"Valkey 9.1 {_ABSENT}"

    @classmethod
    def version(cls) -> str:
        return super().version().replace("Redis", "Valkey")


class _BroughtRabbitMq(RabbitMq):
    """Debian 13's RabbitMQ, with an Erlang and a C library of its own."""

    @classmethod
    def homes(cls) -> list[Path]:
        """Return the folder of its own programs, unless it was not brought."""
        return [*(RIVALS / "rabbitmq/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")]

    @classmethod
    def lacks(cls) -> str:
        return "" if cls.homes() else f"RabbitMQ 4 {_ABSENT}"

    @classmethod
    def version(cls) -> str:
        (home,) = cls.homes()
        return f"RabbitMQ {home.name.rpartition('-')[2]}"

    @property
    def command(self) -> Sequence[str]:
        (home,) = self.homes()
        return [str(home / "sbin/rabbitmq-server")]

    @property
    def environ(self) -> Mapping[str, str]:
        return {**super().environ, "PATH": os.pathsep.join((self._erlang, os.environ.get("PATH", "")))}

    @property
    def _epmd_program(self) -> str:
        return f"{self._erlang}/epmd"

    @property
    def _erlang(self) -> str:
        return str(RIVALS / "rabbitmq/usr/lib/erlang/bin")


class Kafka(Server):
    """A broker in KRaft mode that is its own controller, with the options of Java that its own script has."""

    program = "Kafka"
    protocol = "kafka"
    # Java compiles what it has run for a while: after ten seconds, single publishes were four times as fast as after
    # three.
    warm_up = 10.0
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
        if not any((RIVALS / "kafka").glob("kafka_*.jar")):
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

    @property
    def environ(self) -> Mapping[str, str]:
        return {"JDK_JAVA_OPTIONS": ""}  # options for other programs would count beside these, or contradict them

    @classmethod
    def _run(cls, program: str, *words: str, options: Sequence[str] = ()) -> Sequence[str]:
        return ["java", *options, "-cp", str(RIVALS / "kafka" / "*"), program, *words]

    def launch(self) -> None:
        if not self._data.exists():
            words = ("format", "--cluster-id=bmVpdGhlciBNIG5vciBX", f"--config={self._properties}")
            subprocess.run(self._run("kafka.tools.StorageTool", *words), capture_output=True, check=True)
        super().launch()
