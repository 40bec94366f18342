"""Transforms frames of streams and of batches. Doesn't read or write anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from nsqpipe import worker
from pyspark_nsq.bodies.decoding import COUNTS, COUNTS_TYPE, ERROR, VALUE, Decoder, Decoding
from pyspark_nsq.tables.marks import MARK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Identifies a message. A log never uses a sequence twice, but a node may have had several logs of a topic, one after
# another, so the id is part of the key.
KEY: Final = ("node", "topic", "sequence", "id")


def decoded(rows: DataFrame, decoder: Decoder) -> DataFrame:
    """Add `value` and `error`, except for raw bodies. Rows between marks also get counts, for the sink."""
    if decoder.value_type is None:
        return rows
    value = from_arrow_type(decoder.value_type, prefer_timestamp_ntz=True)
    columns = [*rows.schema, StructField(VALUE, value), StructField(ERROR, StringType())]
    counts = MARK in rows.columns
    if counts:
        columns.append(StructField(COUNTS, from_arrow_type(COUNTS_TYPE)))
    return rows.mapInArrow(Decoding(decoder, counts), StructType(columns))


def with_partitions(rows: DataFrame) -> DataFrame:
    """Add the partition columns. Hours are UTC in jobs, because their sessions use UTC."""
    return rows.withColumn("date", F.to_date("timestamp")).withColumn("hour", F.hour("timestamp"))


def with_gaps_between(rows: DataFrame) -> DataFrame:
    """Add the microseconds since the previous message in the same log; null at the start of a task."""
    schema = rows.select("topic", "node", "sequence", "timestamp", F.length("body").alias("size"))
    return schema.mapInArrow(
        worker.add_gaps, f"topic string, timestamp timestamp, size int, {worker.GAP_COLUMN} bigint"
    )


def counted(rows: DataFrame, *, window_seconds: int, watermark_seconds: int) -> DataFrame:
    """Return a row for each topic and window, with counts, the rate over the whole window, sizes and gaps.

    Percentiles are approximate, within a hundredth of their rank.
    """
    measured = with_gaps_between(rows)
    if rows.isStreaming:
        measured = measured.withWatermark("timestamp", f"{watermark_seconds} seconds")
    grouped = measured.groupBy(F.window("timestamp", f"{window_seconds} seconds"), "topic").agg(
        F.count("*").alias("messages"),
        F.sum(F.col("size").cast("long")).alias("bytes"),
        F.percentile_approx("size", [0.5, 0.95, 0.99], 100).alias("sizes"),
        F.percentile_approx(worker.GAP_COLUMN, [0.5, 0.95, 0.99], 100).alias("gaps"),
    )
    return grouped.select(
        "topic",
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
        "messages",
        (F.col("messages") / F.lit(window_seconds)).alias("rate"),
        "bytes",
        *_named("sizes", "size"),
        *_named("gaps", "gap_us"),
    )


def _named(column: str, name: str) -> list[Column]:
    return [
        F.element_at(column, number).alias(f"{name}_{word}") for number, word in ((1, "p50"), (2, "p95"), (3, "p99"))
    ]


def without_repeats(rows: DataFrame) -> DataFrame:
    """Drop rows with the same `KEY`: a message is identified by its position, never by its time."""
    return rows.dropDuplicates(list(KEY))
