"""Spark is killed again and again while it copies a topic into another one: nothing is missing there. With the idempotence
key nothing is there twice; without it at most one batch is for each kill.

The long version: `python -m tests.spark.sink_kill9 --kills 8`, and again with `--at-least-once`. It prints its counts and its
seed.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pyspark_nsq.options import source_options
from pyspark_nsq.source.batch_source import NsqBatchReader
from scripts.command_line import option, read_options
from tests.spark.driver import BATCH
from tests.spark.kill9 import WINDOW, Application, Publisher, Seen
from tests.support.process import Nsqd
from tests.support.spark import KEPT, address, wait_until_synced

INTO = "copies"


@dataclass(frozen=True, slots=True)
class Result:
    seed: int
    acknowledged: int
    missing: int
    duplicates: int
    kills: int

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.acknowledged} acknowledged, {self.missing} missing in the copy, "
            f"{self.duplicates} duplicates, {self.kills} kills of Spark"
        )

    def is_as_promised(self, *, exactly_once: bool) -> bool:
        return not self.missing and self.duplicates <= (0 if exactly_once else self.kills * BATCH)


def run(folder: Path, *, exactly_once: bool, kills: int, rate: int, seed: int) -> Result:
    draw = random.Random(seed)
    with Nsqd(folder / "one", KEPT, WINDOW) as one, Nsqd(folder / "two", KEPT, WINDOW) as two:
        nodes = [one, two]
        where = ",".join(map(address, nodes))
        for node in nodes:
            node.post("/topic/create?topic=orders")
        options = json.dumps({"exactlyOnce": str(exactly_once).lower(), "messagesPerPublish": "100"})
        job = ["tests.spark.driver", "copy", where, str(folder / "checkpoint"), INTO, options]
        publisher, spark = Publisher(nodes, rate), Application(folder, [sys.executable, "-m", *job])
        publisher.start()
        try:
            for _ in range(kills):
                spark.start()
                spark.wait_for_commit(spark.commits())
                time.sleep(draw.random() * 2)  # the kill may come at any moment of a batch
                spark.kill()
            publisher.stop()
            spark.start("--until-now")
            spark.wait_for_end()
        finally:
            publisher.stop()
            spark.kill()
        for node in nodes:
            wait_until_synced(node, INTO)
        copied = Seen(copied_bodies(where))
    count = publisher.acknowledged
    return Result(seed, count, copied.missing(count), copied.duplicates, kills)


def copied_bodies(nsqd: str) -> list[pa.Array]:
    """Return what is in the topic, read with the source but without Spark."""
    reader = NsqBatchReader(source_options({"nsqd": nsqd, "topic": INTO}), pa.schema([("body", pa.binary())]))
    return [batch["body"] for part in reader.partitions() for batch in reader.read(part)]


@dataclass(frozen=True, kw_only=True)
class SinkKill9Options:
    kills: int = option(8, "of Spark")
    at_least_once: bool = option(False, "without the idempotence key")
    rate: int = option(5_000, "messages a second")
    seed: int = option(random.randrange(1 << 32), "where all chance comes from (default: a new one)")


def main() -> int:
    given = read_options(SinkKill9Options, name="python -m tests.spark.sink_kill9", about=__doc__)
    exactly_once = not given.at_least_once
    with tempfile.TemporaryDirectory(prefix="nsq-sink-kill9-") as folder:
        result = run(Path(folder), exactly_once=exactly_once, kills=given.kills, rate=given.rate, seed=given.seed)
    sys.stdout.write(f"{result}\n")
    return 0 if result.is_as_promised(exactly_once=exactly_once) else 1


if __name__ == "__main__":
    sys.exit(main())
