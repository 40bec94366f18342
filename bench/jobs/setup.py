"""What the processes of one run share: which broker they use, where it is, and the folder where jobs note that they ran.

The processes are started by `python -m tests.simulation jobs` and `python -m bench jobs`, and find their setup in the
environment, because the libraries import an app by its name.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_VARIABLE: Final = "NSQ_JOBS_SETUP"

# Each worker runs so many jobs at a time, and asks the broker for as many.
CONCURRENCY: Final = 2


@dataclass(frozen=True, slots=True)
class Setup:
    broker: str  # a key of servers.SERVERS
    url: str
    folder: str
    speed: float = 1.0  # so many seconds pass in one: what a broker or library waits for is divided by it
    concurrency: int = CONCURRENCY
    ahead: int = 1  # Celery's worker_prefetch_multiplier
    database: str = ""  # the URL of the one in which Django's tasks have their results

    @property
    def environ(self) -> dict[str, str]:
        return {_VARIABLE: json.dumps(asdict(self))}

    @property
    def whole_environ(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.environ}

    def scaled(self, seconds: float) -> float:
        """Return a time of the broker or library in the shortened time of this run."""
        return seconds / self.speed


def setup_of_environment() -> Setup:
    return Setup(**json.loads(os.environ[_VARIABLE]))


class Notes:
    """Where the jobs of a process note that they ran: one line each, written at once, so that no kill loses it."""

    def __init__(self, setup: Setup) -> None:
        self._folder = Path(setup.folder)
        self._files: dict[int, int] = {}  # by process, as workers fork

    def ran(self, number: int, due: float) -> None:
        ran = time.time()
        os.write(self._file(), b"%d %.6f %.6f\n" % (number, due, ran))

    def ready(self) -> None:
        """Note that the worker of this session can work: from now on it is worth to be killed."""
        (self._folder / f"ready-{os.getsid(0)}").touch()

    def _file(self) -> int:
        process = os.getpid()
        if process not in self._files:
            path = self._folder / f"ran-{process}"
            self._files[process] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self._files[process]
