"""A topic lands in a Parquet table while messages are published: up to which rate does the lag stay small?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from bench.brokers import Broker
from bench.processes import wait_until
from bench.report import Row, at_most
from bench.spark.lag import Committed, LagWatch, between, bisect, growth
from bench.spark.stage import TOPIC, Stage, named, where
from bench.work import Failed, say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AIM: Final = 2.0  # seconds of lag
SETTLING: Final = 5.0  # seconds that do not count, as the first micro-batches are slow
STEPS: Final = 6
START_LIMIT: Final = 60.0

HOPELESS: Final = 8.0  # seconds of lag
GREW: Final = 0.5  # seconds of lag: more than a steady lag varies with the length of micro-batches
KEPT_RATE: Final = 0.97  # share of the demanded rate; below it publisher and nsqd are the limit
LOWEST: Final = 10e6  # bytes a second
HIGHEST: Final = 160e6
LESS: Final = 0.85  # factor for the next try if a rate did not hold for the whole minute
MINUTES: Final = 4


@dataclass(frozen=True)
class Landed:
    asked: float
    rate: float  # messages a second that were really published
    lags: tuple[float, ...]
    growth: float

    @property
    def holds(self) -> bool:
        return self.growth < GREW and self.rate > KEPT_RATE * self.asked

    def __str__(self) -> str:
        lag = f"lag {median(self.lags):.2f} s, at most {max(self.lags):.2f}" if self.lags else "no figures"
        return f"{self.asked:,.0f} msg/s asked, {self.rate:,.0f} published, {lag}, grew by {self.growth:.2f} s"


def measure(stage: Stage, size: int) -> list[Row]:
    rate, seconds = stage.settings.landing_rate, stage.settings.minute
    with stage.broker() as broker:
        landed = _land(stage, broker, TOPIC, rate=rate, size=size, seconds=seconds)
    say(str(landed))
    if landed.rate < KEPT_RATE * rate:
        raise Failed(f"{rate:,} msg/s were to be published, and {landed.rate:,.0f} were")
    each = -(-len(landed.lags) // STEPS)
    steps = [landed.lags[start : start + each] for start in range(0, len(landed.lags), each)]
    name = f"at {rate:,} msg/s landed in Parquet"
    return [
        Row(named(f"lag {name}", size), "s", tuple(map(median, steps)), note=f"of {seconds} s in {STEPS} parts"),
        Row(named(f"highest lag {name}", size), "s", (max(landed.lags),), at_most(AIM), note=f"of {seconds} s"),
    ]


def measure_highest(stage: Stage, size: int) -> list[Row]:
    settings, tried = stage.settings, 0
    with stage.broker() as broker:

        def attempt(rate: float, seconds: float) -> Landed:
            nonlocal tried
            tried += 1
            landed = _land(stage, broker, f"{TOPIC}_{tried}", rate=rate, size=size, seconds=seconds)
            say(f"{'holds' if landed.holds else 'does not hold'}: {landed}")
            return landed

        low, high = LOWEST / size, HIGHEST / size
        rate = bisect(low, high, settings.tries, lambda rate: attempt(rate, settings.try_seconds).holds)
        for _ in range(MINUTES):
            landed = attempt(rate, settings.minute)
            if landed.holds:
                break
            rate *= LESS
        else:
            raise Failed(f"no rate held for {settings.minute} s; the last was {landed}")
    note = f"{settings.minute} s, lag {median(landed.lags):.1f} s, at most {max(landed.lags):.1f} s"
    return [Row(named("highest rate with lag that does not grow", size), "msg/s", (landed.rate,), note=note)]


def _land(stage: Stage, broker: Broker, topic: str, *, rate: float, size: int, seconds: float) -> Landed:
    """Land a topic of its own with a query of its own, so that nothing of an earlier one is left to catch up with."""
    with (
        stage.tables() as tables,
        landing(stage.spark, broker, topic, tables) as query,
        LagWatch(broker, topic, checkpoint_of(tables)) as watch,
        stage.publishing(broker, topic, rate=rate, size=size, seconds=SETTLING + seconds) as publisher,
    ):
        begin = time.monotonic() + SETTLING
        while publisher.poll() is None and watch.latest < HOPELESS:
            need_active(query)
            time.sleep(0.5)
        end = min(time.monotonic(), begin + seconds)
    broker.post_all([f"/topic/delete?topic={topic}"])
    samples = [sample for sample in watch.samples if begin <= sample.at < end]
    published = samples[-1].published - samples[0].published if len(samples) > 1 else 0
    found = watch.lags()
    is_whole = end >= begin + seconds - 1
    return Landed(
        rate,
        published / max(end - begin, 1),
        tuple(between(found, begin, end)),
        growth(found, begin, end) if is_whole else float("inf"),
    )


@contextmanager
def landing(
    spark: SparkSession, broker: Broker, topic: str, tables: Path, schema: str = ""
) -> Iterator[StreamingQuery]:
    """Run a stream from the new topic into `table_of(tables)`. The block begins once its first batch is committed."""
    broker.post_all([f"/topic/create?topic={topic}"])
    query = start_landing(spark, where(broker, topic), checkpoint_of(tables), table_of(tables), schema)
    try:
        committed = Committed(checkpoint_of(tables))
        wait_until(lambda: need_active(query) and committed.look().batch >= 0, START_LIMIT, "a first batch")
        yield query
    finally:
        query.stop()


def start_landing(
    spark: SparkSession, options: dict[str, str], checkpoint: Path, table: Path, schema: str = ""
) -> StreamingQuery:
    reader = spark.readStream.format("nsq").options(**options)
    frame = (reader.schema(schema) if schema else reader).load()
    return frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint)).start(str(table))


def need_active(query: StreamingQuery) -> bool:
    if error := query.exception():
        raise Failed(f"the stream ended: {error}")
    return bool(query.isActive)


def checkpoint_of(tables: Path) -> Path:
    return tables / "checkpoint"


def table_of(tables: Path) -> Path:
    return tables / "table"
