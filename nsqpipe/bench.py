"""`nsqpipe bench`: measures how fast this Spark reads this cluster's topics.

The project's own figures are from `python -m bench spark`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from nsqpipe.transforms import counted
from pyspark_nsq.source import queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    rows: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def measure(
    spark: SparkSession, source: queries.From, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Figure]:
    """Time several jobs, each reading all of the topics. We count first, to start the Python workers."""
    rows = queries.batch(spark, source)
    total = rows.count()
    with TemporaryDirectory(prefix="nsqpipe-bench-") as folder:
        jobs: dict[str, Callable[[], None]] = {
            "read": lambda: _discard(rows),
            "to Parquet": lambda: rows.write.mode("overwrite").parquet(f"{folder}/table"),
            "Parquet read again, by Spark": lambda: _discard(spark.read.parquet(f"{folder}/table")),
            "to windows": lambda: _discard(counted(rows, window_seconds=60, watermark_seconds=60)),
        }
        for name, job in jobs.items():
            began = clock()
            job()
            yield Figure(name, total, clock() - began)


def _discard(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
