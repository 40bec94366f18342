"""A real `celery worker` process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from tests.nsqjobs.celery_app import BROKER, SETTINGS
from tests.nsqjobs.program import TIMEOUT, Program
from tests.support.process import eventually


class Worker(Program):
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
        app: str = "tests.nsqjobs.celery_app",
        queues: list[str],
        **settings: Any,
    ) -> None:
        self.name = f"{name}@test"
        words = ["-m", "celery", "-A", app, "worker", "-n", self.name, "-Q", ",".join(queues), "-l", "info", *options]
        environ = {BROKER: url, SETTINGS: json.dumps(settings)}
        super().__init__(words, folder / f"{name}.log", environ=environ, folder=folder)

    def start(self) -> Self:
        """Start the worker, and return when it is ready."""
        super().start()
        self.wait_for_log(f"{self.name} ready.")
        return self


def lines(path: Path) -> list[str]:
    """Return the complete lines of a file that may be there; the last one may be half written."""
    found = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [line.removesuffix("\n") for line in found if line.endswith("\n")]


def wait_for_lines(path: Path, count: int) -> list[str]:
    """Return the lines of a file once there are so many."""
    eventually(lambda: len(lines(path)) >= count, TIMEOUT)
    return lines(path)
