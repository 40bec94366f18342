"""A real `taskiq worker` with the tasks of tests/e2e/peers/taskiq_app.py, and what its tasks have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.nsqjobs.program import TIMEOUT, Program
from tests.support.process import eventually

APP: Final = "tests.e2e.peers.taskiq_app:broker"


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
            eventually(lambda: len(self.lines(*words)) >= count, TIMEOUT)
        except AssertionError:
            raise AssertionError(f"no {count} lines {words} in\n{self.path.read_text()}") from None
        return self.lines(*words)


class Worker(Program):
    """The processes of one `taskiq worker`."""

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
        words = ["-P", "-m", "taskiq", "worker", app, "--workers", "1", *options]
        environ = {"TASKIQ_URL": url, "TASKIQ_QUEUE": queue, "TASKIQ_JOURNAL": str(journal.path), **environ}
        super().__init__(words, journal.path.with_suffix(".log"), environ=environ, folder=folder)
