"""A Spark application of its own, to be killed: `python -m tests.spark.driver land NSQD CHECKPOINT TABLE`.

It lands the topic `orders` in Parquet, until somebody ends it. With `copy NSQD CHECKPOINT TOPIC OPTIONS` it publishes that
topic's messages into another one instead, as the sink's options, a JSON object, say; with `--until-now` only those that are
there. `run FILE NSQD CHECKPOINT TOPIC OPTIONS` does that beside the jobs of `nsqpipe run FILE`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from nsqpipe.cli import app
from nsqpipe.session import open_session
from tests.support.spark import NO_CODEGEN

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

BATCH: Final = 20_000  # rows of one that copies
SMALL_BATCH: Final = 2_000  # the same beside the jobs of a file


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


def reader(spark: SparkSession, nsqd: str, **options: int) -> DataStreamReader:
    return spark.readStream.format("nsq").options(nsqd=nsqd, topic="orders", **options)


def land(spark: SparkSession, nsqd: str, table: str) -> DataStreamWriter:
    rows = reader(spark, nsqd, maxRowsPerTrigger=50_000).schema("node string, sequence bigint, body binary").load()
    return rows.writeStream.format("parquet").option("path", table)


def copy(spark: SparkSession, nsqd: str, topic: str, options: str, *, batch: int = BATCH) -> DataStreamWriter:
    rows = reader(spark, nsqd, maxRowsPerTrigger=batch, rowsPerTask=batch // 4).schema("body binary").load()
    return rows.writeStream.format("nsq").options(nsqd=nsqd, topic=topic, **json.loads(options))


def run(file: str, nsqd: str, checkpoint: str, topic: str, options: str) -> None:
    # Tasks of the copy stop, and the jobs have to go on.
    spark = open_session("run", master="local[8]", conf={**NO_CODEGEN})
    copying = copy(spark, nsqd, topic, options, batch=SMALL_BATCH).option("checkpointLocation", checkpoint).start()
    threading.Thread(target=end_with, args=(copying,), daemon=True).start()
    app(["run", file])


def end_with(query: StreamingQuery) -> None:
    """End this process when the query has failed: who waits for its tasks would wait in vain."""
    try:
        query.awaitTermination()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def main(job: str, *words: str) -> None:
    if job == "run":
        run(*words)
        return
    nsqd, checkpoint, *rest = words
    if until_now := rest[-1] == "--until-now":
        del rest[-1]
    writer = (land if job == "land" else copy)(session(), nsqd, *rest).option("checkpointLocation", checkpoint)
    if until_now:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
