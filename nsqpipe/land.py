"""`nsqpipe land`: topics into a table, each message exactly once.

Where rows may fail there are two queries: what is good goes into the table, what is not into the quarantine, each with a
checkpoint of its own, so that both are exact whatever is killed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqpipe import sources
from nsqpipe.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from nsqpipe.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Land:
    source: sources.From
    table: Table
    quarantine: Table
    shape: Shape = field(default_factory=Shape)
    every: str = ""  # a trigger's interval; empty: as fast as it goes
    until_now: bool = False  # what is there, and end


def start_landing(spark: SparkSession, job: Land) -> list[StreamingQuery]:
    writers = [_writer(job.shape.good(sources.stream(spark, job.source)), job.table, "land", job)]
    if job.shape.can_fail:
        writers.append(_writer(job.shape.bad(sources.stream(spark, job.source)), job.quarantine, "quarantine", job))
    return [writer.start() for writer in writers]  # none of them when one cannot be


def _writer(rows: DataFrame, table: Table, name: str, job: Land) -> DataStreamWriter:
    writer = table.stream_writer(rows).queryName(name).option("checkpointLocation", table.checkpoint)
    return sources.triggered(writer, every=job.every, until_now=job.until_now)
