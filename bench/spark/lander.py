"""A Spark application to be killed: `python -m bench.spark.lander NSQD TOPIC CHECKPOINT TABLE` lands a topic."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.spark.landing import start_landing
from bench.spark.session import open_session


def main(nsqd: str, topic: str, checkpoint: str, table: str) -> None:
    spark = open_session(Path(table).parent)
    start_landing(spark, {"nsqd": nsqd, "topic": topic}, Path(checkpoint), Path(table)).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:5])
