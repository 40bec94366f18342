"""`nsqpipe land`: topics into a table, each message exactly once.

Where rows may fail there are two queries: what is good goes into the table, what is not into the quarantine, each with a
checkpoint of its own, so that both are exact whatever is killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsqpipe import sources
from nsqpipe.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from nsqpipe.tables import Table


# What the source does unless it is told otherwise, or how often there is to be a batch: each is a file in every partition that
# it touches, so one waits for this many rows, or that long.
SOURCE_OPTIONS: Final[Mapping[str, str]] = {"minRowsPerTrigger": "100000", "maxTriggerDelay": "60s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Land:
    source: sources.From
    table: Table
    quarantine: Table
    shape: Shape = field(default_factory=Shape)
    every: str = ""  # a trigger's interval; empty: as fast as it goes
    until_now: bool = False  # what is there, and end


def start_landing(spark: SparkSession, job: Land) -> list[StreamingQuery]:
    source = job.source if job.every else sources.with_defaults(job.source, SOURCE_OPTIONS)
    writers = [_writer(job.shape.good(sources.stream(spark, source)), job.table, "land", job)]
    if job.shape.can_fail:
        writers.append(_writer(job.shape.bad(sources.stream(spark, source)), job.quarantine, "quarantine", job))
    return [writer.start() for writer in writers]  # none of them when one cannot be


def _writer(rows: DataFrame, table: Table, name: str, job: Land) -> DataStreamWriter:
    writer = table.stream_writer(rows).queryName(name).option("checkpointLocation", table.checkpoint)
    return sources.triggered(writer, every=job.every, until_now=job.until_now)
