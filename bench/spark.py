"""Spark on a topic: how fast rows come and go, and how late they are.

Each job runs on the topic and, in turn with it, on Spark's own Parquet file source with the same rows, which is what a reader in
the JVM can do; the first, slow run of each is left out. Latency is from publication until the micro-batch with the row is
committed to a Parquet table; beside it stands the time of a micro-batch of Spark's own `rate-micro-batch` source.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from bench.brokers import Broker, running_nsqd
from bench.report import Benchmark, Row, at_least, at_most
from bench.work import HERE, HOST, Failed, Work, say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC: Final = "bench_spark"
PARQUET: Final = "the Parquet file source"
KEEP: Final = "--retention-bytes=1TB"
WINDOWS: Final = "window(timestamp, '1 second')"
PART: Final = 2000
LANDING_LIMIT: Final = 60.0  # seconds after the last publish
_pack: Final = Struct(">I").pack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each job (default: %(default)s)")
    parser.add_argument("--count", type=int, default=1_000_000, help="messages in the topic (default: %(default)s)")
    parser.add_argument("--size", type=int, default=200, help="bytes of a message (default: %(default)s)")
    parser.add_argument(
        "--rates", default="1000,10000,50000", help="messages a second for latency (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=int, default=20, help="seconds of each rate (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    with work.new_folder("data") as data, work.new_folder("tables") as tables:
        flags = [*settings.flag, KEEP]
        with running_nsqd(data, settings.build, flags) as (broker, _):
            _fill(broker, TOPIC, settings.count, settings.size)
            spark = _session(tables)
            try:
                jobs = _Jobs(spark, broker, tables, settings)
                rows = [*jobs.batches(), *jobs.stream(), jobs.sink()]
                for rate in map(int, settings.rates.split(",")):
                    rows += _latency(spark, broker, tables / f"latency{rate}", rate, settings)
            finally:
                spark.stop()
    return rows


def _session(folder: Path) -> SparkSession:
    if shutil.which("java") is None:
        raise Failed("Spark needs Java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(HERE.parent)
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise Failed("pyspark is missing: scripts/setup dev,spark") from None
    session = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", HOST)
        .config("spark.driver.bindAddress", HOST)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


class _Jobs:
    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, settings: argparse.Namespace) -> None:
        self._spark = spark
        self._folder = folder
        self._settings = settings
        self._where = {"nsqd": f"{HOST}:{broker.http_port}", "topic": TOPIC}
        self._made = 0

    def _new(self) -> str:
        self._made += 1
        return str(self._folder / f"table{self._made}")

    def _per_second(self, job: Callable[[], object]) -> float:
        began = time.monotonic()
        job()
        return float(self._settings.count / (time.monotonic() - began))

    def batches(self) -> list[Row]:
        topic = self._spark.read.format("nsq").options(**self._where).load()
        landed = self._new()
        topic.write.parquet(landed)
        parquet = self._spark.read.parquet(landed)
        jobs: dict[str, Callable[[DataFrame], object]] = {
            "batch to noop": lambda frame: frame.write.format("noop").mode("overwrite").save(),
            "batch to Parquet": lambda frame: frame.write.parquet(self._new()),
            "batch to counts per second": lambda frame: (
                frame.selectExpr(WINDOWS, "body").groupBy("window").agg({"*": "count", "body": "max"}).collect()
            ),
        }
        rows = []
        for name, job in jobs.items():
            mine, theirs = [], []
            for _ in range(self._settings.runs + 1):
                mine.append(self._per_second(lambda job=job: job(topic)))  # type: ignore[misc]
                theirs.append(self._per_second(lambda job=job: job(parquet)))  # type: ignore[misc]
            rows.append(Row(name, "rows/s", tuple(mine[1:]), at_least(0.8), PARQUET, tuple(theirs[1:])))
            say(f"{name}: {rows[-1].ratio:.2f} of {PARQUET}")
        return rows

    def stream(self) -> list[Row]:
        values = [self._per_second(self._catch_up) for _ in range(self._settings.runs)]
        return [Row("stream to noop, 200,000 rows a batch", "rows/s", tuple(values), note="with its start")]

    def _catch_up(self) -> None:
        reader = self._spark.readStream.format("nsq").options(**self._where, maxRowsPerTrigger=200_000)
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", self._new())
        writer.trigger(availableNow=True).start().awaitTermination()

    def sink(self) -> Row:
        size = self._settings.size
        rows = self._spark.range(0, self._settings.count, 1, 2).selectExpr(
            f"lpad(cast(id as string), {size}, 'x') as body"
        )
        where = {**self._where, "topic": f"{TOPIC}_out"}
        values = [
            self._per_second(lambda: rows.write.format("nsq").mode("append").options(**where).save())
            for _ in range(self._settings.runs + 1)
        ]
        return Row("sink", "msg/s", tuple(values[1:]), at_least(400_000))


def _latency(spark: SparkSession, broker: Broker, folder: Path, rate: int, settings: argparse.Namespace) -> list[Row]:
    topic, table = f"{TOPIC}_{rate}", folder / "table"
    _fill(broker, topic, 1, settings.size)
    reader = spark.readStream.format("nsq").schema("timestamp timestamp, body binary")
    frame = reader.options(nsqd=f"{HOST}:{broker.http_port}", topic=topic, startingOffsets="latest").load()
    query = (
        frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint")).start(str(table))
    )
    floor = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", max(1, rate // 10)).load()
    try:
        time.sleep(5)  # for the first batches, which are slow
        began = time.time_ns()
        _publish_at(broker, topic, rate, settings)
        wait_until = time.monotonic() + LANDING_LIMIT
        while len(_delays(table, began)) < rate * settings.seconds and time.monotonic() < wait_until:
            time.sleep(1)
    finally:
        query.stop()
    late = sorted(_delays(table, began))
    say(f"{rate} msg/s: {len(late)} rows")
    if len(late) < rate * settings.seconds:
        raise Failed(f"{rate * settings.seconds} were published at {rate}/s, and {len(late)} landed in time")
    other = floor.writeStream.format("noop").option("checkpointLocation", str(folder / "floor")).start()
    time.sleep(8)
    durations = sorted(it["durationMs"]["triggerExecution"] for it in other.recentProgress)
    other.stop()
    note = f"a batch of rate-micro-batch: {durations[len(durations) // 2]} ms"
    return [
        Row(
            f"publish to row at {rate:,} msg/s, p{share}",
            "ms",
            (late[min(len(late) - 1, len(late) * share // 100)],),
            at_most(350) if share == 50 else None,
            note=note,
        )
        for share in (50, 95, 99)
    ]


def _delays(table: Path, began: int) -> list[float]:
    """Milliseconds from each row's publication until the sink had committed its batch."""
    import pyarrow.parquet

    late: list[float] = []
    for path in (table / "_spark_metadata").glob("[0-9]*"):
        committed = path.stat().st_mtime_ns
        for line in path.read_text().splitlines()[1:]:
            if '"action":"add"' in line:
                file = line.split('"path":"file://')[1].split('"')[0]
                times: Any = pyarrow.parquet.read_table(file, columns=["timestamp"])["timestamp"]
                published = times.cast(pyarrow.timestamp("us", "UTC")).cast(pyarrow.int64()).to_pylist()
                late += [(committed - 1000 * it) / 1e6 for it in published if 1000 * it >= began]
    return late


# Publishing


def _bodies(count: int, size: int) -> bytes:
    prefix = _pack(size)
    return _pack(count) + b"".join(prefix + os.urandom(size) for _ in range(count))


def _post(connection: http.client.HTTPConnection, topic: str, body: bytes) -> None:
    connection.request("POST", f"/mpub?topic={topic}&binary=true", body)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise Failed(f"/mpub: {answer.status}")


def _fill(broker: Broker, topic: str, count: int, size: int) -> None:
    """Returns when all of it can be read."""
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=60)
    for start in range(0, count, PART):
        _post(connection, topic, _bodies(min(PART, count - start), size))
    connection.close()
    while int(broker.log(topic)["next"]) < count:
        time.sleep(0.01)


def _publish_at(broker: Broker, topic: str, rate: int, settings: argparse.Namespace) -> None:
    """A hundred requests a second, or one for each message."""
    each = max(1, rate // 100)
    body = _bodies(each, settings.size)
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=60)
    began, pause = time.monotonic(), threading.Event()
    for number in range(rate * settings.seconds // each):
        pause.wait(max(0.0, began + number * each / rate - time.monotonic()))
        _post(connection, topic, body)
    connection.close()


BENCHMARK: Final = Benchmark("spark", "How fast and how late is Spark on a topic?", add_arguments, run, at_most=30)
