"""Batch jobs on a whole topic, in turn with the same job on Spark's Parquet file source with the same rows.

The first run of each, which starts workers and compiles, is left out. Where a job needs two columns, Spark reads no others
from Parquet; a source in Python is not told, so its schema says it, as docs/how-to/spark.md recommends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count as numbers
from typing import TYPE_CHECKING, Final

from bench.report import Row, at_least
from bench.runner import in_turns
from bench.spark.stage import Stage, named, per_second, where
from bench.work import say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARQUET: Final = "the Parquet file source"
WINDOWS: Final = "window(timestamp, '1 second')"
NEEDED: Final = "timestamp timestamp, body binary"
AIM: Final = 0.8


def measure(stage: Stage, size: int) -> list[Row]:
    with stage.broker() as broker, stage.tables() as tables:
        count = stage.fill(broker, size)
        topic = stage.spark.read.format("nsq").options(**where(broker)).load()
        topic.write.parquet(f"{tables}/landed")
        parquet = stage.spark.read.parquet(f"{tables}/landed")
        needed = stage.spark.read.format("nsq").options(**where(broker)).schema(NEEDED).load()
        made = numbers()
        jobs: dict[str, tuple[DataFrame, Callable[[DataFrame], object]]] = {
            "batch to noop": (topic, lambda frame: frame.write.format("noop").mode("overwrite").save()),
            "batch to Parquet": (topic, lambda frame: frame.write.parquet(f"{tables}/{next(made)}")),
            "batch to counts per second": (
                needed,
                lambda frame: (
                    frame.selectExpr(WINDOWS, "body").groupBy("window").agg({"*": "count", "body": "max"}).collect()
                ),
            ),
        }
        return [_in_turn(named(name, size), job, frame, parquet, count, stage) for name, (frame, job) in jobs.items()]


def _in_turn(
    name: str, job: Callable[[DataFrame], object], topic: DataFrame, parquet: DataFrame, count: int, stage: Stage
) -> Row:
    values: dict[bool, list[float]] = {True: [], False: []}
    for _, is_mine in in_turns((True, False), stage.settings.runs + 1):
        values[is_mine].append(per_second(count, partial(job, topic if is_mine else parquet)))
    mine, theirs = values[True], values[False]
    row = Row(name, "rows/s", tuple(mine[1:]), at_least(AIM), PARQUET, tuple(theirs[1:]))
    say(f"{name}: {row.ratio:.2f} of {PARQUET}")
    return row
