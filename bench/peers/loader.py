"""The load generators: `load/*.c` for several protocols, and `load/java` for Kafka, compiled into the folder of the run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from bench.work import RIVALS, SLACK, Failed, Load, compiled, parsed, started

JARS: Final = RIVALS / "kafka" / "*"
SOURCES: Final = Path(__file__).parent / "load"
KAFKA: Final = "kafka"  # the protocol that the load generator in Java speaks
DONE, CLOSED, SHORT, NOT_READY = 0, 3, 4, 5  # exit statuses, see the head of load.c


class NotReady(Failed):
    """The server did not greet the load generator, which has done nothing: one can try again."""


class Target(Protocol):
    """What the load generator has to know of a server."""

    port: int
    kind: str  # of an AMQP queue

    @property
    def protocol(self) -> str: ...


class Loader:
    def __init__(self, program: Path) -> None:
        self._program = program

    @classmethod
    def compiled(cls, folder: Path) -> Loader:
        return cls(compiled(folder / "load", "-D_GNU_SOURCE", *sorted(SOURCES.glob("*.c"))))

    def run(
        self, mode: str, target: Target, queue: str, *, at_most: float, allow: tuple[int, ...] = (DONE,), **keys: object
    ) -> Load:
        """Run the load generator to its end, which should come after `at_most` seconds."""
        command = self._command(mode, target, queue, keys)
        with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, said = process.communicate(timeout=at_most + SLACK)
            except subprocess.TimeoutExpired:
                raise Failed(f"load {mode} did not end in {at_most + SLACK:.0f} seconds") from None
        if process.returncode not in allow:
            words = " ".join(command[1:])
            kind = NotReady if process.returncode == NOT_READY else Failed
            raise kind(f"load {words}: status {process.returncode}, {(said or out).decode().strip()}")
        return parsed(out, process.returncode)

    def retried(
        self,
        mode: str,
        target: Target,
        queue: str,
        *,
        at_most: float,
        pause: float,
        allow: tuple[int, ...] = (DONE,),
        **keys: object,
    ) -> Load:
        """Run it, again and again while the server is not ready: it has just been started."""
        end = time.monotonic() + at_most
        while True:
            try:
                return self.run(mode, target, queue, at_most=at_most, allow=allow, **keys)
            except NotReady:
                if time.monotonic() > end:
                    raise
                time.sleep(pause)

    @contextmanager
    def running(self, mode: str, target: Target, queue: str, **keys: object) -> Iterator[subprocess.Popen[bytes]]:
        """Run the load generator beside the block, and kill it at the end if it still runs."""
        with started(self._command(mode, target, queue, keys), stdout=subprocess.PIPE) as process:
            yield process

    def _command(self, mode: str, target: Target, queue: str, keys: dict[str, object]) -> list[str]:
        settings = {"kind": target.kind, **keys} if target.kind else keys
        words = [f"{key}={value}" for key, value in settings.items() if value is not None]
        program = self._in_java() if target.protocol == KAFKA else [str(self._program)]
        return [*program, mode, target.protocol, str(target.port), queue, *words]

    def _in_java(self) -> list[str]:
        """Return the command of the load generator in Java, which the first call compiles."""
        classes = self._program.with_name("java")
        if not (classes / "Load.class").exists():
            sources = sorted((SOURCES / "java").glob("*.java"))
            subprocess.run(["javac", "-cp", str(JARS), "-d", classes, *sources], check=True, timeout=120)
        return ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{classes}:{JARS}", "Load"]
