"""A Spark application of its own, to be killed: `python -m tests.spark.driver NSQD CHECKPOINT TABLE`.

It lands the topic `orders` in Parquet, until somebody ends it. A line `ready` is printed when the query runs.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def main(nsqd: str, checkpoint: str, table: str) -> None:
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
    reader = spark.readStream.format("nsq").schema("node string, sequence bigint, body binary")
    frame = reader.options(nsqd=nsqd, topic="orders", maxRowsPerTrigger=50_000).load()
    query = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(table)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:4])
