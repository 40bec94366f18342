"""The memory of a Celery worker, and of the broker, while many jobs wait for their ETA."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.jobs.rates import Stage, staged
from bench.sessions import megabytes
from bench.work import ROOT, Failed, Work, say

DUE: Final = 3_500  # seconds: within the hour that nsqd and Celery on Redis have by default
_FILL_LIMIT: Final = 1_200.0
_LIMIT: Final = 600.0  # seconds until the worker has what it takes
_QUIET: Final = 20.0  # seconds in which its memory does not grow by a hundredth
_READY_LIMIT: Final = 120.0


@dataclass(frozen=True, slots=True)
class Held:
    """Megabytes: of the worker's processes without jobs, the same with jobs, and of the broker."""

    empty: float
    full: float
    broker: float
    note: str


def measure(work: Work, broker: str, count: int, most: float, python: Sequence[str]) -> Held:
    """Measure a worker with so many jobs waiting. It is stopped when it takes more than `most` megabytes."""
    with staged(work, "celery", broker, python) as stage:
        with stage.worker() as process:
            _wait_until_ready(stage, process.pid)
            empty, _ = _settled(process.pid, most)
        subprocess.run(
            [sys.executable, "-m", "bench.jobs.fill", str(count), str(DUE)],
            cwd=ROOT,
            env=stage.setup.whole_environ,
            check=True,
            timeout=_FILL_LIMIT,
        )
        if (left := stage.server.left()) != count:
            raise Failed(f"{broker} has {left:,} jobs, not {count:,}")
        say(f"{broker:>5}: {count:,} jobs are there")
        with stage.worker() as process:
            _wait_until_ready(stage, process.pid)
            full, note = _settled(process.pid, most)
            in_broker = megabytes(stage.server.pid)
        return Held(empty, full, in_broker, note)


def _wait_until_ready(stage: Stage, worker: int) -> None:
    end = time.monotonic() + _READY_LIMIT
    while not (stage.folder / "out" / f"ready-{worker}").exists():
        if time.monotonic() > end:
            raise Failed(f"the worker is not ready\n{(stage.folder / 'worker.txt').read_text()[-2000:]}")
        time.sleep(0.1)


def _settled(worker: int, most: float) -> tuple[float, str]:
    """Return the megabytes that the worker takes once they no longer grow, and why that was not waited for."""
    end = time.monotonic() + _LIMIT
    size, since = megabytes(worker), time.monotonic()
    while time.monotonic() < since + _QUIET:
        time.sleep(0.5)
        if (now := megabytes(worker)) > 1.01 * size:
            size, since = now, time.monotonic()
        if now > most:
            return now, f"stopped there: it may have {most:,.0f} MB"
        if time.monotonic() > end:
            return now, f"still growing after {_LIMIT:.0f} s"
    return max(size, megabytes(worker)), ""
