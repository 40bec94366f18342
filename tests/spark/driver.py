"""A Spark application of its own, to be killed: `python -m tests.spark.driver land NSQD CHECKPOINT TABLE`.

It lands the topic `orders` in Parquet, until somebody ends it. With `copy NSQD CHECKPOINT TOPIC OPTIONS` it publishes that
topic's messages into another one instead, as the sink's options, a JSON object, say; with `--until-now` only those that are
there.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

BATCH: Final = 20_000  # rows of one that copies


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def reader(nsqd: str, **options: int) -> DataStreamReader:
    return session().readStream.format("nsq").options(nsqd=nsqd, topic="orders", **options)


def land(nsqd: str, table: str) -> DataStreamWriter:
    rows = reader(nsqd, maxRowsPerTrigger=50_000).schema("node string, sequence bigint, body binary").load()
    return rows.writeStream.format("parquet").option("path", table)


def copy(nsqd: str, topic: str, options: str) -> DataStreamWriter:
    rows = reader(nsqd, maxRowsPerTrigger=BATCH, rowsPerTask=BATCH // 4).schema("body binary").load()
    return rows.writeStream.format("nsq").options(nsqd=nsqd, topic=topic, **json.loads(options))


def main(job: str, nsqd: str, checkpoint: str, *words: str) -> None:
    until_now = words[-1] == "--until-now"
    words = words[:-1] if until_now else words
    writer = (land if job == "land" else copy)(nsqd, *words).option("checkpointLocation", checkpoint)
    if until_now:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
