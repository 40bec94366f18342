"""A real `taskiq worker` with the tasks of tests/e2e/peers/taskiq_app.py, and what its tasks have written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.process import SOURCES, eventually

APP: Final = "tests.e2e.peers.taskiq_app:broker"
LIMIT: Final = 30.0  # seconds for what a worker is expected to do


def environment() -> dict[str, str]:
    """Return the environment of a program that uses this tree."""
    return {**os.environ, "PYTHONPATH": SOURCES}


class Journal:
    """What tasks have written: words, each line with the time before them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self, *words: str) -> list[list[Any]]:
        """Return the lines that begin with these words."""
        # The last line may be half written.
        lines = [json.loads(line) for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if tuple(line[1 : len(words) + 1]) == words]

    def wait_for(self, *words: str, count: int = 1) -> list[list[Any]]:
        """Return the lines that begin with these words, once there are so many."""
        try:
            eventually(lambda: len(self.lines(*words)) >= count, LIMIT)
        except AssertionError:
            raise AssertionError(f"no {count} lines {words} in\n{self.path.read_text()}") from None
        return self.lines(*words)


class Worker:
    """The processes of one `taskiq worker`, in a process group of their own."""

    def __init__(
        self,
        url: str,
        queue: str,
        journal: Journal,
        *options: str,
        app: str = APP,
        folder: Path | None = None,
        **environ: str,
    ) -> None:
        self._log = journal.path.with_suffix(".log")
        self._options = options
        self._app = app
        self._folder = folder
        self._environ = {
            "TASKIQ_URL": url,
            "TASKIQ_QUEUE": queue,
            "TASKIQ_JOURNAL": str(journal.path),
            **environ,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", "-m", "taskiq", "worker", self._app, "--workers", "1", *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**environment(), **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.log[-20_000:])  # noqa: T201  # pytest shows it beside the error
        self.kill()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """Kill all its processes with SIGKILL."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # all of them have ended
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(LIMIT)
            self._process = None

    def terminate(self) -> None:
        """Ask it with SIGTERM to stop."""
        assert self._process is not None
        self._process.terminate()

    def wait(self) -> int:
        """Return its exit status, once it has ended."""
        assert self._process is not None
        return self._process.wait(LIMIT)
