"""How long Spark takes to recover from `kill -9` of all processes of an application that lands a topic.

It is started again at once, and messages are published all the time. It has recovered when its lag is no longer than before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.brokers import Broker
from bench.processes import wait_until
from bench.report import Row
from bench.spark.lag import LagWatch, between
from bench.spark.landing import HOPELESS, checkpoint_of, table_of
from bench.spark.stage import TOPIC, Stage, named, where
from bench.work import Failed, say, started

STEADY: Final = 5.0  # seconds before the kill over which the usual lag is measured
BACK_LIMIT: Final = 120.0


def measure(stage: Stage, size: int) -> list[Row]:
    settings = stage.settings
    rate, limit = settings.recovery_rate, (settings.kills + 1) * BACK_LIMIT
    commits: list[float] = []
    backs: list[float] = []
    with stage.broker() as broker, stage.tables() as tables:
        broker.post_all([f"/topic/create?topic={TOPIC}"])
        with (
            stage.publishing(broker, TOPIC, rate=rate, size=size, seconds=limit),
            LagWatch(broker, TOPIC, checkpoint_of(tables)) as watch,
        ):
            usual = 0.0
            for number in range(settings.kills + 1):
                with _lander(broker, tables) as process:
                    began = time.monotonic()
                    commit, back = _come_back(watch, process, began, usual)
                    if number:
                        commits.append(commit)
                        backs.append(back)
                        say(f"{commit:.1f} s until a commit, {back:.1f} s until the lag is {usual:.2f} s again")
                    if number < settings.kills:
                        usual = _usual_lag(watch, process)
    name = f"after kill -9 of Spark, at {rate:,} msg/s"
    return [
        Row(named(f"next commit {name}", size), "s", tuple(commits)),
        Row(named(f"lag as before {name}", size), "s", tuple(backs), note=f"which was {usual:.2f} s at most"),
    ]


def _come_back(watch: LagWatch, process: subprocess.Popen[bytes], began: float, usual: float) -> tuple[float, float]:
    """Return the seconds until the next commit, and until the lag is as before."""
    before = watch.committed.look().batch
    wait_until(lambda: _need_alive(process) and watch.committed.batch > before, BACK_LIMIT, "a commit")
    commit = time.monotonic() - began
    if usual:
        wait_until(lambda: _need_alive(process) and watch.latest <= usual, BACK_LIMIT, f"a lag of {usual:.2f} s")
    return commit, time.monotonic() - began


def _usual_lag(watch: LagWatch, process: subprocess.Popen[bytes]) -> float:
    """Return the highest lag in some seconds, once it has stopped falling: a new driver is slow at first."""
    end = time.monotonic() + BACK_LIMIT
    highest = float("inf")
    while time.monotonic() < end:
        begin = time.monotonic()
        time.sleep(STEADY)
        _need_alive(process)
        last, highest = highest, max(between(watch.lags(), begin, time.monotonic()))
        if highest > 0.8 * last and last < HOPELESS:
            return max(highest, last)
    raise Failed("the lag did not become steady")


def _need_alive(process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise Failed(f"the driver ended with status {process.returncode}")
    return True


@contextmanager
def _lander(broker: Broker, tables: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the application, and kill it with everything that it has started at the end of the block."""
    options = where(broker, TOPIC)
    command = [sys.executable, "-m", "bench.spark.lander", options["nsqd"], TOPIC]
    with (
        (tables / "lander.log").open("ab") as log,
        started(
            [*command, str(checkpoint_of(tables)), str(table_of(tables))], stdout=log, stderr=log, new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            _kill_session(process)


def _kill_session(leader: subprocess.Popen[bytes]) -> None:
    while found := _processes_of(leader.pid):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        leader.poll()


def _processes_of(session: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found
