"""A program of a job library, with its children: a worker, as its users start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support import forked
from tests.support.process import SOURCES, Process, eventually

TIMEOUT: Final = 30.0  # seconds for what a worker is expected to do


def environment() -> dict[str, str]:
    """Return the environment of a program that uses this tree."""
    return {**os.environ, "PYTHONPATH": SOURCES}


class Program(Process):
    """`python WORDS...` in a process group of its own, so that its children can be killed with it. Its log is a file.

    It is forked from a process that has imported the library, but with the fixture `real_starts`.
    """

    program = "the worker"

    def __init__(
        self, words: Sequence[str], log: Path, *, environ: Mapping[str, str], folder: Path | None = None
    ) -> None:
        super().__init__()
        self._words = words
        self._log = log
        self._environ = environ
        self._folder = folder

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._process = forked.Popen(
                [sys.executable, *self._words],
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
        if error is not None:
            print(self.log[-20_000:])  # noqa: T201  # pytest shows it with the failure
        super().__exit__(kind, error, trace)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="backslashreplace") if self._log.exists() else ""

    def wait_for_log(self, text: str) -> None:
        def has_it() -> bool:
            ended = self._running.poll() is not None
            assert text in self.log or not ended, f"the worker has ended\n{self.log}"
            return text in self.log

        eventually(has_it, TIMEOUT)

    def kill(self) -> None:
        """Kill the worker and its children with SIGKILL, as a machine does that goes down."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # all of them have ended
                os.killpg(self.pid, signal.SIGKILL)
        super().kill()  # a fork may not have made its group yet
