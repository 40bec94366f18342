"""`nsqpipe land`: topics into a table, each message exactly once.

A decoder that may fail has two queries: what it understands goes into the table, what it does not into the quarantine, each
with a checkpoint of its own, so that both are exact whatever is killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from nsqpipe import sources
from nsqpipe.quality import Rule, judged, observed
from nsqpipe.transforms import with_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from nsqpipe.decoders import Decoder
    from nsqpipe.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Land:
    source: sources.From
    table: Table
    decoder: Decoder
    rules: tuple[Rule, ...] = ()
    quarantine: Table
    every: str = ""  # a trigger's interval; empty: as fast as it goes
    until_now: bool = False  # what is there, and end


def start_landing(spark: SparkSession, job: Land) -> list[StreamingQuery]:
    queries = [_start(observed(_good(_judged(spark, job)), job.rules), job.table, "land", job)]
    if job.decoder.can_fail or job.rules:
        bad = _judged(spark, job).where(F.col("error").isNotNull())
        queries.append(_start(bad.drop("value"), job.quarantine, "quarantine", job))
    return queries


def _judged(spark: SparkSession, job: Land) -> DataFrame:
    decoded = with_partitions(job.decoder.decode(sources.stream(spark, job.source)))
    return judged(decoded, job.rules)


def _good(rows: DataFrame) -> DataFrame:
    """What was understood, without the body that it was understood from."""
    if "error" in rows.columns:
        rows = rows.where(F.col("error").isNull()).drop("error")
    return rows.drop("body") if "value" in rows.columns else rows


def _start(rows: DataFrame, table: Table, name: str, job: Land) -> StreamingQuery:
    writer = table.writer(rows).queryName(name).option("checkpointLocation", table.checkpoint)
    if job.until_now:
        writer = writer.trigger(availableNow=True)
    elif job.every:
        writer = writer.trigger(processingTime=job.every)
    return writer.start()
