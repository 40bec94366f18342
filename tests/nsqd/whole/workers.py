"""A real `nsqd --workers=N`, for tests: where its workers listen, and which processes they are."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.client import Client
from tests.support.process import START_TIMEOUT, STOP_TIMEOUT, Answer, Daemon, eventually

_TOPIC: Final = "t"


class Workers(Daemon):
    """The supervisor. Its workers are asked for by their numbers."""

    program = "nsqd"

    def __init__(self, data_path: Path, count: int, *options: str) -> None:
        super().__init__(*options, f"workers={count}", "broadcast-address=127.0.0.1")
        self.data_path = data_path
        self.count = count
        self._clients = ExitStack()

    def _arguments(self) -> Sequence[str]:
        self.data_path.mkdir(parents=True, exist_ok=True)
        return f"--data-path={self.data_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"

    def start(self) -> Self:
        super().start()
        self.wait_for("all workers are ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clients.close()
        super().__exit__(kind, error, trace)

    def kill(self) -> None:
        """Kill the supervisor, upon which its workers stop. A worker that does not is killed, too."""
        if self._process is not None and self._collector is not None:
            self._process.kill()
            self._collector.join(STOP_TIMEOUT)  # to the end of the log, which the workers write, too
            for pid in self._left():
                os.kill(pid, signal.SIGKILL)
        super().kill()

    def _left(self) -> list[int]:
        """Return the workers that run. Their ids may be other processes' by now, so they have to use the data path."""
        ids = [int(it) for it in re.findall(r"worker-\d+ is process (\d+)", self.log)]
        return [it for it in ids if _has_open(it, self.data_path)]

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the log has a text so many times."""
        try:
            eventually(lambda: self.log.count(text) >= count, START_TIMEOUT)
        except AssertionError:
            raise AssertionError(f"{text!r} is not in the log {count} times\n{self.log}") from None

    # One worker

    def worker_pid(self, number: int) -> int:
        """Return the process that the worker is now, or was last."""
        return int(self._last(rf"worker-{number} is process (\d+)"))

    def tcp_of(self, number: int) -> tuple[str, int]:
        return "127.0.0.1", self._port(number, "TCP")

    def http_port(self, number: int) -> int:
        return self._port(number, "HTTP")

    def connect(self, number: int) -> Client:
        return self._clients.enter_context(Client(self.tcp_of(number)))

    def ask(self, number: int, method: str, path: str, body: bytes | None = None) -> Answer:
        self.http_address = ("127.0.0.1", self.http_port(number))
        return self.http(method, path, body)

    def depth(self, number: int, topic: str = _TOPIC) -> int:
        topics: Any = json.loads(self.ask(number, "GET", f"/stats?format=json&topic={topic}").body)["topics"]
        return sum(int(it["depth"]) for it in topics)

    def _port(self, number: int, kind: str) -> int:
        return int(self._last(rf"worker-{number}: .* {kind}: listening on 127.0.0.1:(\d+)"))

    def _last(self, pattern: str) -> str:
        found = re.findall(pattern, self.log)
        assert found, f"{pattern} is not in the log\n{self.log}"
        return str(found[-1])


def _has_open(pid: int, folder: Path) -> bool:
    """Return whether the process has a file open in the folder. A forked one has the command line of its zygote."""
    try:
        return any(os.readlink(it).startswith(f"{folder}/") for it in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
