"""`nsqpipe aggregate`: counts, rates, bytes and percentiles of topics and windows, as a table and a JSON file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from nsqpipe import results
from nsqpipe.transforms import counted
from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.source import queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from pyspark_nsq.stores.places import Place
    from pyspark_nsq.tables.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    source: queries.From
    window_seconds: int
    watermark_seconds: int
    checkpoint: str
    results: Place | None  # the file that nsqadmin charts; it includes open windows, which still grow
    keep: int  # number of windows per topic in the results
    table: Table | None  # gets each window once, when it is closed
    every: str
    until_now: bool
    prefix: str = ""  # of the names of its queries


def start_aggregating(spark: SparkSession, job: Aggregate) -> Iterator[StreamingQuery]:
    """Start the queries of the job, one after another."""
    if job.results is None and job.table is None:
        raise PipeFailed("nothing to do: --results, --table or both are needed")
    if job.results is not None:
        yield _start_results(_windows(spark, job, job.results, "json"), job, job.results)
    if job.table is not None:
        yield _start_table(_windows(spark, job, job.table.place, job.table.format), job, job.table)


def _windows(spark: SparkSession, job: Aggregate, into: Place, kind: str) -> DataFrame:
    rows = queries.stream(spark, queries.reporting(job.source, "aggregate", into.absolute(), kind))
    return counted(rows, window_seconds=job.window_seconds, watermark_seconds=job.watermark_seconds)


def _start_results(windows: DataFrame, job: Aggregate, place: Place) -> StreamingQuery:
    known = results.load(place, job.window_seconds, job.keep)

    def publish(batch: DataFrame, _number: int) -> None:
        known.add(row.asDict() for row in batch.collect())
        results.save(place, known, datetime.now(UTC))

    writer = windows.writeStream.foreachBatch(publish).outputMode("update").queryName(f"{job.prefix}aggregate")
    return _started(writer, f"{job.checkpoint}/results", job)


def _start_table(windows: DataFrame, job: Aggregate, table: Table) -> StreamingQuery:
    writer = table.stream_writer(windows.withColumn("date", F.to_date("start")), ("topic", "date"))
    return _started(writer.queryName(f"{job.prefix}windows"), f"{job.checkpoint}/table", job)


def _started(writer: DataStreamWriter, checkpoint: str, job: Aggregate) -> StreamingQuery:
    writer = writer.option("checkpointLocation", checkpoint)
    return queries.triggered(writer, every=job.every, until_now=job.until_now).start()
