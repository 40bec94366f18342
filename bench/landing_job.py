"""A landing in a process of its own, to be measured: `python bench/landing_job.py WAY NSQD WARM FULL FOLDER`.

It runs on any checkout that PYTHONPATH names, this one or an older one, and needs nothing of `bench`. The topic WARM is
landed first and does not count: it starts the workers and warms up the JVM. Prints the rows, seconds, and processor
seconds of its whole session by kind of process, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from nsqpipe.decoders import make_decoder
from nsqpipe.land import Land, start_landing
from nsqpipe.session import open_session
from nsqpipe.shape import Shape
from nsqpipe.transforms import with_partitions


def _first_of(*names: str) -> Any:
    """Return the first of these modules that there is. The later names are those of older checkouts."""
    for name in names[:-1]:
        with suppress(ModuleNotFoundError):
            return import_module(name)
    return import_module(names[-1])


kinds = _first_of("pyspark_nsq.kinds", "nsqpipe.kinds", "nsqpipe.decoders")
queries = _first_of("pyspark_nsq.source.queries", "nsqpipe.sources")
tables = _first_of("pyspark_nsq.tables.table", "nsqpipe.tables")

FIELDS = "user string, amount double, number bigint"
_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_EVERY = 0.2  # seconds


class Used(threading.Thread):
    """Processor seconds of our session by kind of process, including processes that have ended.

    The time of Spark's Python workers does not end up with a parent, so all processes are looked at again and again.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._seconds: dict[tuple[int, str], tuple[str, float]] = {}
        self._lock = threading.Lock()

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(_LOOK_EVERY)

    def look(self) -> dict[str, float]:
        with self._lock:
            for path in Path("/proc").glob("[0-9]*/stat"):
                try:
                    name, _, rest = path.read_text().rpartition(")")
                except OSError:
                    continue
                fields = rest.split()
                if int(fields[3]) == os.getsid(0):
                    kind = "jvm" if "(java" in name else "python"
                    self._seconds[int(path.parent.name), fields[19]] = (
                        kind,
                        (int(fields[11]) + int(fields[12])) / _TICKS,
                    )
            found = {"jvm": 0.0, "python": 0.0}
            for kind, seconds in self._seconds.values():
                found[kind] += seconds
            return found


def land(spark: Any, source: Any, folder: Path, shape: Shape) -> None:
    job = Land(
        source=source,
        table=tables.Table(str(folder / "table"), tables.Format.DELTA),
        quarantine=tables.Table(str(folder / "bad"), tables.Format.DELTA),
        shape=shape,
        until_now=True,
    )
    for query in start_landing(spark, job):
        query.awaitTermination()


def land_rows(spark: Any, source: Any, folder: Path) -> None:
    """Land in the general way: rows pass through Spark, `format("nsq")` to `format("nsqtable")`."""
    writer = with_partitions(queries.stream(spark, source)).writeStream.format("nsqtable")
    writer = writer.options(path=str(folder / "table"), partitioning=",".join(tables.PARTITIONS))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.outputMode("append").start().awaitTermination()


def copy(spark: Any, table: Path, folder: Path) -> None:
    """Copy rows with Spark alone, from Parquet to Parquet."""
    rows = spark.read.parquet(str(table))
    rows.write.option("compression", "zstd").partitionBy(*tables.PARTITIONS).parquet(str(folder / "copy"))


def main(way: str, nsqd: str, warm: str, full: str, folder: str) -> None:
    spark = open_session(f"bench {way}", master="local[2]")
    decoder = make_decoder(kinds.Kind.JSON, FIELDS, "")
    ways: dict[str, Callable[[Any, Path], None]] = {
        "raw": lambda source, to: land(spark, source, to, Shape()),
        "json": lambda source, to: land(spark, source, to, Shape(decoder=decoder)),
        "rows": lambda source, to: land_rows(spark, source, to),
    }
    used = Used()
    used.start()
    results: dict[str, float] = {}
    for topic in (warm, full):
        here = Path(folder) / topic
        source = queries.From(topics=(topic,), nsqd=(nsqd,))
        results = measured(used, partial(ways["raw" if way == "copy" else way], source, here))
    if way == "copy":
        for topic in (warm, full):
            here = Path(folder) / topic
            results = measured(used, partial(copy, spark, here / "table", here))
    here = Path(folder) / full
    rows = spark.read.parquet(str(here / "table"))
    (landed,) = rows.agg(F.count("*").alias("rows"), F.countDistinct("sequence").alias("different")).collect()
    print(json.dumps({**results, **landed.asDict()}))
    spark.stop()


def measured(used: Used, job: Callable[[], None]) -> dict[str, float]:
    before, began = used.look(), time.monotonic()
    job()
    seconds, after = time.monotonic() - began, used.look()
    return {"seconds": seconds, **{kind: after[kind] - before[kind] for kind in after}}


if __name__ == "__main__":
    main(*sys.argv[1:6])
