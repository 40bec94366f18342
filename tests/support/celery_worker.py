"""A real `celery worker` process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.celery_app import BROKER, SETTINGS
from tests.support.process import SOURCES, eventually

TIMEOUT = 30.0


class Worker:
    """One worker, with its children. Its log is a file in `folder`.

    with Worker(tmp_path, url, "--pool=solo", queues=["mails"]) as worker:
        ...
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        *options: str,
        name: str = "w",
        app: str = "tests.support.celery_app",
        queues: list[str],
        **settings: Any,
    ) -> None:
        self.name = f"{name}@test"
        self._folder = folder
        self._app = app
        self._path = folder / f"{name}.log"
        self._url = url
        self._options = ["-n", self.name, "-Q", ",".join(queues), "-l", "info", *options]
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the worker, and return when it is ready."""
        environ = {
            **os.environ,
            "PYTHONPATH": SOURCES,
            BROKER: self._url,
            SETTINGS: json.dumps(self._settings),
        }
        with self._path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", self._app, "worker", *self._options],
                cwd=self._folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its children can be killed with it
            )
        self.wait_for_log(f"{self.name} ready.")
        return self

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.log[-20_000:])  # noqa: T201  # pytest shows it with the failure
        self.kill()

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace") if self._path.exists() else ""

    def wait_for_log(self, text: str) -> None:
        def has_it() -> bool:
            assert self._process is not None
            ended = self._process.poll() is not None
            assert text in self.log or not ended, f"the worker has ended\n{self.log}"
            return text in self.log

        eventually(has_it, TIMEOUT)

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Return the exit status of a worker that ends."""
        assert self._process is not None
        try:
            return self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end\n{self.log}") from None

    def kill(self) -> None:
        """Kill the worker and its children with SIGKILL."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait(TIMEOUT)
            self._process = None


def lines(path: Path) -> list[str]:
    """Return the complete lines of a file that may be there; the last one may be half written."""
    found = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [line.removesuffix("\n") for line in found if line.endswith("\n")]


def wait_for_lines(path: Path, count: int) -> list[str]:
    """Return the lines of a file once there are so many."""
    eventually(lambda: len(lines(path)) >= count, TIMEOUT)
    return lines(path)
