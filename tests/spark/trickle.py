"""A topic that gets a few messages a second lands for ten minutes: how many files does its table have meanwhile?

`python -m tests.spark.trickle --rate 50 --minutes 10 --at-most 20` starts nsqd and `nsqpipe land` with its defaults, prints a
line now and then, and fails when the table ever names more files, or a message is missing or there twice at the end.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from pyspark_nsq.tables.table import Format
from scripts.command_line import option, read_options
from tests.spark.kill9 import WINDOW, Landing, Publisher
from tests.support.process import Nsqd, eventually
from tests.support.spark import KEPT

PATIENCE: Final = 180  # seconds
_LOOK: Final = 5.0  # seconds


@dataclass
class Result:
    acknowledged: int = 0
    missing: int = 0
    duplicates: int = 0
    commits: int = 0
    most_files: int = 0
    files: int = 0

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged, {self.missing} missing, {self.duplicates} duplicates; {self.commits} commits, "
            f"at most {self.most_files} files, {self.files} at the end"
        )


def run(folder: Path, *, rate: int, seconds: float) -> Result:
    result = Result()
    with Nsqd(folder / "one", KEPT, WINDOW) as nsqd:
        nsqd.post("/topic/create?topic=orders")
        publisher, landing = (
            Publisher([nsqd], rate, part=max(1, rate // 10)),
            Landing(folder, [nsqd], Format.DELTA, pace=()),
        )
        landing.spark.start()
        publisher.start()
        try:
            landing.spark.wait_for_commit(0)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                result.acknowledged = publisher.acknowledged
                look(landing, result)
                sys.stdout.write(f"{until - time.monotonic():4.0f} s to go: {result}\n")
                sys.stdout.flush()
                time.sleep(_LOOK)
            publisher.stop()
            result.acknowledged = publisher.acknowledged
            eventually(lambda: len(landing.landed()) >= result.acknowledged, timeout=PATIENCE)
            look(landing, result)
        finally:
            publisher.stop()
            landing.spark.kill()
        landed = landing.landed()
        result.missing, result.duplicates = landed.missing(result.acknowledged), landed.duplicates
    return result


def look(landing: Landing, result: Result) -> None:
    if not DeltaTable.is_deltatable(landing.table):  # the first batch may have no row
        return
    table = DeltaTable(landing.table)
    result.files = len(table.file_uris())
    result.most_files = max(result.most_files, result.files)
    result.commits = table.version()


@dataclass(frozen=True, kw_only=True)
class TrickleOptions:
    rate: int = option(50, "messages a second")
    minutes: float = option(10, "how long")
    at_most: int = option(20, "files")


def main() -> int:
    given = read_options(TrickleOptions, name="python -m tests.spark.trickle", about=__doc__)
    with tempfile.TemporaryDirectory(prefix="nsq-trickle-") as folder:
        result = run(Path(folder), rate=given.rate, seconds=given.minutes * 60)
    sys.stdout.write(f"{result}\n")
    return 1 if result.missing or result.duplicates or result.most_files > given.at_most else 0


if __name__ == "__main__":
    sys.exit(main())
