"""A large backlog: how soon is its first part in the table, and how much work does a kill half-way lose?

`nsqpipe land --until-now` runs as users run it. When half of the messages are in the table it is killed, started again, and in
the end the table's log has to count each message once.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bench.brokers import Broker, running_nsqd
from bench.landing import fill
from bench.report import Benchmark, Row, at_most
from bench.settings import Settings
from bench.spark.stage import KEEP
from bench.work import HOST, ROOT, Failed, Work, say, started
from scripts.command_line import option

TOPIC: Final = "backlog"
FIRST: Final = 15.0  # seconds
LOST: Final = 0.1  # of the work
_LIMIT: Final = 1800.0  # seconds for one run


class Commit(NamedTuple):
    at: float  # wall clock
    rows: int


@dataclass(kw_only=True)
class BacklogSettings(Settings):
    count: int = option(20_000_000, "messages to land")


def run(settings: BacklogSettings, work: Work) -> list[Row]:
    flags = [*settings.flag, KEEP]
    with (
        work.new_folder("data") as data,
        work.new_folder("tables") as tables,
        running_nsqd(data, settings.build, flags) as (broker, _),
    ):
        fill(broker, TOPIC, settings.count, 0.0)
        say(f"{settings.count:,} messages are there")
        table = tables / "table"
        began = time.time()
        with _landing(broker, table) as process:
            commits = _commits_until(table, settings.count // 2, process)
            killed = time.time()
            os.killpg(process.pid, signal.SIGKILL)
        half = _commits(table)
        say(f"killed after {killed - began:.1f} s with {sum(it.rows for it in half):,} rows in {len(half)} commits")
        planned = (table.with_name("table.checkpoint") / "offsets" / "0").stat().st_mtime
        with _landing(broker, table) as process:
            _commits_until(table, settings.count, process)
            if process.wait(_LIMIT):
                raise Failed(f"the second landing ended with status {process.returncode}")
        landed = sum(it.rows for it in _commits(table))
        if landed != settings.count:
            raise Failed(f"{landed:,} rows of {settings.count:,} messages are in the table")
    points = [planned, *(it.at for it in commits)]
    longest = max(after - before for before, after in itertools.pairwise(points))
    return [
        Row("first commit after the first batch was planned", "s", (commits[0].at - planned,), at_most(FIRST)),
        Row("first commit after the command", "s", (commits[0].at - began,)),
        Row("rows of the largest commit", "rows", (float(max(it.rows for it in commits)),)),
        Row("lost by this kill", "of the work", ((killed - half[-1].at) / (killed - planned),), at_most(LOST)),
        Row("lost by a kill at the worst moment", "of the work", (longest / (killed - planned),), at_most(LOST)),
    ]


@contextmanager
def _landing(broker: Broker, table: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "nsqpipe", "land", "--topic", TOPIC, "--nsqd", f"{HOST}:{broker.http_port}"]
    command += ["--table", str(table), "--until-now", "--quiet"]
    with started(command, new_session=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _commits_until(table: Path, rows: int, process: subprocess.Popen[bytes]) -> list[Commit]:
    deadline = time.monotonic() + _LIMIT
    while time.monotonic() < deadline:
        commits = _commits(table)
        if sum(it.rows for it in commits) >= rows:
            return commits
        if process.poll() is not None:
            raise Failed(f"the landing ended with status {process.returncode}")
        time.sleep(0.1)
    raise Failed(f"{rows:,} rows were not in the table after {_LIMIT:.0f} s")


def _commits(table: Path) -> list[Commit]:
    """Return the commits that added rows; joining files adds none."""
    found = []
    for path in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        added = [action["add"] for action in actions if "add" in action and action["add"]["dataChange"]]
        if added:
            rows = sum(json.loads(add["stats"])["numRecords"] for add in added)
            found.append(Commit(path.stat().st_mtime, rows))
    return found


BENCHMARK: Final = Benchmark(
    "backlog", "How soon is a backlog in the table, and what does a kill cost?", BacklogSettings, run, at_most=60
)
