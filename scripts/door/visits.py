"""The newcomer: each step of a visit, and how long its phases take."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TextIO

from scripts.door.machines import Failed, Machine, Running

HTTP: Final = "http://127.0.0.1:4151"
TCP: Final = "127.0.0.1:4150"
PROMISED: Final = 40.0  # seconds until a first start answers, where packages come quickly
SOURCE: Final = "/srv/nsq-suite.git"
_INSTALL_LIMIT: Final = 1800.0
_COMPILE_LIMIT: Final = 1800.0
_TEST_LIMIT: Final = 4 * 3600.0
_PHASE: Final = re.compile(r"== (?P<name>.+): (?P<seconds>\d+) s(?:, (?P<note>exit status \d+))?")
_BODY: Final = "hello from the door"


@dataclass(frozen=True, slots=True)
class Phase:
    machine: str
    step: str
    name: str
    seconds: float
    note: str = ""
    failed: bool = False


@dataclass(slots=True)
class Visit:
    machine: Machine
    log: TextIO
    tests: str  # arguments of scripts/test
    phases: list[Phase] = field(default_factory=list)

    def broker(self) -> None:
        """Clone, start a broker, use it; then start it again, when its core has been compiled in the background."""
        folder = "broker"
        self._clone("run-broker", folder)
        with self._running_broker("run-broker", folder) as broker:
            with self._phase("run-broker", "install"):
                self._wait(broker, lambda: self._is_there(f"{folder}/.venv/bin/nsqd"), _INSTALL_LIMIT, "installs nsqd")
            with self._phase("run-broker", "answer to /ping") as notes:
                self._wait(broker, answers, _INSTALL_LIMIT, "answers")
                late = f", later than the promised {PROMISED:.0f} s" if broker.seconds > PROMISED else ""
                notes.append(f"{broker.seconds:.1f} s after the command{late}")
            with self._phase("run-broker", "publish, consume"):
                self._publish_and_consume(folder)
            self._wait_for_the_compiler(broker, folder)

    def compiled(self) -> None:
        """Start the broker again, which has a C compiler from now on if scripts/test has brought one."""
        folder = "broker"
        if not self.machine.succeeds("command -v cc"):
            self._add("run-broker, again", "compile", 0, "no C compiler: it stays pure Python")
            return
        if not self._is_compiled(folder):
            with self._running_broker("run-broker, again", folder) as broker:
                with self._phase("run-broker, again", "answer to /ping"):
                    self._wait(broker, answers, _INSTALL_LIMIT, "answers")
                self._wait_for_the_compiler(broker, folder)
        with (
            self._running_broker("run-broker, compiled", folder) as broker,
            self._phase("run-broker, compiled", "answer to /ping") as notes,
        ):
            self._wait(broker, answers, _INSTALL_LIMIT, "answers")
            notes += [line.rpartition("INFO: ")[2] for _, line in broker.lines if "INFO: core: " in line]
            if notes[-1:] != ["core: compiled"]:
                raise Failed("it has been compiled, and that is not what runs")

    def test(self) -> None:
        """Clone, and run the whole suite; scripts/phase says the seconds of each of its phases."""
        folder = "tests"
        self._clone("test", folder)
        with self._phase("test", "scripts/test") as notes:
            running = self.machine.start(f"exec scripts/test {self.tests}", self.log, cwd=self._path(folder))
            status = running.wait(_TEST_LIMIT)
            for phase in filter(None, (_PHASE.fullmatch(line) for _, line in running.lines)):
                # The suite passes where the compiler's phase has found no compiler.
                failed = bool(status and phase["note"])
                self._add("test", phase["name"], float(phase["seconds"]), phase["note"] or "", failed=failed)
            said = [line for _, line in running.lines if line.strip()]
            if status:
                raise Failed(f"status {status}: {said[-1] if said else 'it said nothing'}")
            notes.append(next((it.strip("= ") for it in reversed(said) if " passed" in it), ""))

    def _clone(self, step: str, folder: str) -> None:
        with self._phase(step, "clone"):
            self.machine.run(f"git clone --quiet {SOURCE} {folder}", self.log)

    def _publish_and_consume(self, folder: str) -> None:
        with urllib.request.urlopen(f"{HTTP}/pub?topic=door", _BODY.encode(), timeout=10) as answer:
            answer.read()
        tail = f".venv/bin/nsq_tail --topic door --channel door --nsqd-tcp-address {TCP} -n 1"
        consumer = self.machine.start(tail, self.log, cwd=self._path(folder))
        if consumer.wait(60) or _BODY not in [line for _, line in consumer.lines]:
            raise Failed(f"consumed {[line for _, line in consumer.lines]} instead of {_BODY!r}")
        with urllib.request.urlopen(f"{HTTP}/stats?format=json&topic=door", timeout=10) as answer:
            (topic,) = json.load(answer)["topics"]
        if topic["channels"][0]["depth"]:
            raise Failed("the message that was consumed is still in the channel")

    def _wait_for_the_compiler(self, broker: Running, folder: str) -> None:
        step = "run-broker"
        if not self.machine.succeeds("command -v cc"):
            self._add(step, "compile", 0, "no C compiler")
            return
        with self._phase(step, "compile in the background"):
            self._wait(broker, lambda: self._is_compiled(folder), _COMPILE_LIMIT, "compiles its core")

    def _is_compiled(self, folder: str) -> bool:
        return self.machine.succeeds("scripts/compile --check", cwd=self._path(folder))

    @contextmanager
    def _running_broker(self, step: str, folder: str) -> Iterator[Running]:
        if answers():
            raise Failed(f"something listens at {HTTP}, where the broker would")
        broker = self.machine.start("exec scripts/run-broker", self.log, cwd=self._path(folder))
        try:
            yield broker
        finally:
            status = broker.stop()
        if status:
            self._add(step, "stop", 0, f"status {status} after Ctrl-C", failed=True)

    def _wait(self, broker: Running, condition: Callable[[], bool], limit: float, what: str) -> None:
        deadline = time.monotonic() + limit
        while not condition():
            if broker.status is not None:
                raise Failed(f"it ended with status {broker.status}: {broker.lines[-1][1] if broker.lines else ''}")
            if time.monotonic() > deadline:
                raise Failed(f"it never {what}")
            time.sleep(0.1)

    def _is_there(self, path: str) -> bool:
        return (self.machine.root / self.machine.home[1:] / path).exists()

    def _path(self, folder: str) -> str:
        return f"{self.machine.home}/{folder}"

    def _add(self, step: str, name: str, seconds: float, note: str = "", *, failed: bool = False) -> None:
        self.phases.append(Phase(self.machine.name, step, name, seconds, note, failed))

    @contextmanager
    def _phase(self, step: str, name: str) -> Iterator[list[str]]:
        notes: list[str] = []
        began = time.monotonic()
        failed = False
        try:
            yield notes
        except Failed as error:
            notes.append(str(error))
            failed = True
            raise
        finally:
            self._add(step, name, time.monotonic() - began, ", ".join(notes), failed=failed)


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"{HTTP}/ping", timeout=5) as answer:
            return bool(answer.read() == b"OK")
    except OSError:
        return False
