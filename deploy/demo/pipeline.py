"""Lands the demo's orders in Parquet, every few seconds, and says how many there are of each item.

    pipeline.py --lookupd nsqlookupd1:4161 --folder /data/orders

It may be killed at any moment: the next run goes on where this one was, without a gap and without a repetition. SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lookupd", required=True, metavar="HOST:PORT,...")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--folder", required=True, type=Path, help="for the table and the checkpoint")
    chosen = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())

    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    spark = SparkSession.builder.master("local[*]").appName("demo").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    table = str(chosen.folder / "table")
    orders = (
        spark.readStream.format("nsq")
        .options(lookupd=chosen.lookupd, topic=chosen.topic)
        .load()
        .select(
            "node",
            "sequence",
            "timestamp",
            from_json(col("body").cast("string"), "number bigint, item string, price bigint").alias("order"),
        )
        .select("node", "sequence", "timestamp", "order.*")
    )
    query = (
        orders.writeStream.format("parquet")
        .option("path", table)
        .option("checkpointLocation", str(chosen.folder / "checkpoint"))
        .trigger(processingTime="5 seconds")
        .start()
    )
    landed = 0
    while not stopping.wait(5) and query.isActive:
        if query.lastProgress is not None:
            now = spark.read.parquet(table).count() if any(Path(table).glob("*.parquet")) else 0
            if now != landed:
                landed = now
                counts = spark.read.parquet(table).groupBy("item").count().orderBy("item").collect()
                print(f"landed {landed} orders:", ", ".join(f"{it['item']} {it['count']}" for it in counts), flush=True)
    if (failure := query.exception()) is not None:
        sys.exit(str(failure))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
