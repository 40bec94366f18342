"""Streams that catch up with a topic in five micro-batches, beside the same stream from two sources in the JVM.

These are Parquet files, one for each micro-batch, and `rate-micro-batch`, which has nothing to read and makes its rows.
The time is that of the micro-batches after the first one, as Spark reports it, planning and commits included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count as numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.brokers import Broker
from bench.report import Row
from bench.spark.batches import PARQUET, WINDOWS
from bench.spark.stage import Stage, named, wait_until, where
from bench.work import Failed, say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

RATE: Final = "rate-micro-batch"
BATCHES: Final = 5
LIMIT: Final = 120.0

_Job = Callable[["DataFrame"], "DataStreamWriter"]


def measure(stage: Stage, size: int) -> list[Row]:
    rows: list[Row] = []
    with stage.broker() as broker, stage.tables() as tables:
        each = -(-stage.fill(broker, size) // BATCHES)
        sources = _sources(stage, broker, tables, each, size)
        made = numbers()
        for name, job in _jobs(tables).items():
            values: dict[str, list[float]] = {source: [] for source in sources}
            for _ in range(stage.settings.stream_runs):
                for source, frame in sources.items():
                    checkpoint = f"{tables}/checkpoint{next(made)}"
                    values[source].append(_rows_per_second(job(frame), checkpoint))
            mine, files, rate = (tuple(found) for found in values.values())
            rows.append(Row(named(name, size), "rows/s", mine, None, PARQUET, files))
            rows.append(Row(named(name, size), "rows/s", mine, None, RATE, rate))
            say(f"{rows[-1].name}: {rows[-2].ratio:.2f} of {PARQUET}, {rows[-1].ratio:.2f} of {RATE}")
    return rows


def _sources(stage: Stage, broker: Broker, tables: Path, each: int, size: int) -> dict[str, DataFrame]:
    """Return the sources by name. Each gives BATCHES micro-batches."""
    spark, files = stage.spark, f"{tables}/files"
    topic = spark.read.format("nsq").options(**where(broker), rowsPerTask=each).load()
    topic.write.parquet(files)
    reader = spark.readStream
    made = reader.format(RATE).option("rowsPerBatch", each).load()
    return {
        "topic": spark.readStream.format("nsq").options(**where(broker), maxRowsPerTrigger=each).load(),
        PARQUET: spark.readStream.schema(topic.schema).option("maxFilesPerTrigger", 1).parquet(files),
        RATE: made.selectExpr("timestamp", f"lpad(cast(value as string), {size}, 'x') as body"),
    }


def _jobs(tables: Path) -> dict[str, _Job]:
    made = numbers()
    return {
        "stream to noop": lambda frame: frame.writeStream.format("noop"),
        "stream to Parquet": lambda frame: frame.writeStream.format("parquet").option(
            "path", f"{tables}/table{next(made)}"
        ),
        "stream to counts per second": lambda frame: (
            frame.selectExpr(WINDOWS, "body")
            .groupBy("window")
            .agg({"*": "count", "body": "max"})
            .writeStream.outputMode("update")
            .format("noop")
        ),
    }


def _rows_per_second(writer: DataStreamWriter, checkpoint: str) -> float:
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        wait_until(lambda: _is_through(query), LIMIT, f"{BATCHES} micro-batches")
    finally:
        query.stop()
    measured = progress(query)[1:BATCHES]
    return 1000 * sum(int(it["numInputRows"]) for it in measured) / sum(took(measured))


def _is_through(query: StreamingQuery) -> bool:
    if error := query.exception():
        raise Failed(f"the stream ended: {error}")
    return len(progress(query)) >= BATCHES


def progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return Spark's reports on the latest micro-batches that had rows."""
    reports = [json.loads(report.json) for report in query.recentProgress]
    return [report for report in reports if report["numInputRows"]]


def took(reports: Sequence[dict[str, Any]]) -> list[float]:
    """Return how many milliseconds each batch took."""
    return [float(report["durationMs"]["triggerExecution"]) for report in reports]
