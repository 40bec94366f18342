"""The time from a message's publication, by nsqd's timestamp, to the commit of its micro-batch in a Parquet table.

For comparison: how long such a micro-batch takes with Spark's own `rate-micro-batch`, the minimum for any source.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count as numbers
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.processes import wait_until
from bench.report import Row, at_most
from bench.spark.lag import Committed
from bench.spark.landing import checkpoint_of, landing, need_active, table_of
from bench.spark.stage import TOPIC, Stage, named
from bench.work import Failed, say

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

RATE: Final = "rate-micro-batch"
AIM: Final = 350  # ms, of the median
SHARES: Final[Mapping[str, float]] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
COLUMNS: Final = "timestamp timestamp, body binary"
SETTLING: Final = 5  # seconds that do not count
PARTS: Final = 3  # parts of the time, each with quantiles of its own
LANDING_LIMIT: Final = 60.0  # seconds after the last publish
RATE_SECONDS: Final = 5


def measure(stage: Stage, size: int) -> list[Row]:
    return [row for rate in stage.settings.rates for row in _measure(stage, rate, size)]


def _measure(stage: Stage, rate: int, size: int) -> list[Row]:
    import pyarrow.compute as pc  # imported here, as other benchmarks do not need it

    seconds = stage.settings.seconds
    with stage.broker() as broker, stage.tables() as tables:
        with landing(stage.spark, broker, TOPIC, tables, COLUMNS) as query:
            began = time.time_ns() // 1000
            with stage.publishing(broker, TOPIC, rate=rate, size=size, seconds=SETTLING + seconds) as publisher:
                while publisher.poll() is None:
                    need_active(query)
                    time.sleep(0.5)
            last, committed = int(broker.log(TOPIC)["next"]), Committed(checkpoint_of(tables))
            wait_until(lambda: committed.look().next >= last, LANDING_LIMIT, "all that was published landed")
            reports = progress(query)[1:]
        edges = [began + 1_000_000 * (SETTLING + seconds * part / PARTS) for part in range(PARTS + 1)]
        parts = _delays(table_of(tables), edges)
        if min(map(len, parts)) < 0.9 * rate * seconds / PARTS:
            raise Failed(f"{rate} msg/s were to be published, but rows: {', '.join(str(len(part)) for part in parts)}")
        floor = _rate_micro_batches(stage, tables, int(median(it["numInputRows"] for it in reports)), size)
    rows = [
        Row(
            named(f"publish to row at {rate:,} msg/s, {name}", size),
            "ms",
            tuple(float(pc.quantile(part, share)[0].as_py()) for part in parts),
            at_most(AIM) if name == "p50" else None,
        )
        for name, share in SHARES.items()
    ]
    say(f"{rate:,} msg/s of {size} bytes: {', '.join(f'{median(row.values):.0f} ms' for row in rows)}")
    mine = tuple(map(median, _thirds(took(reports))))
    other = tuple(map(median, _thirds(floor)))
    return [*rows, Row(named(f"a micro-batch at {rate:,} msg/s", size), "ms", mine, None, RATE, other)]


def _rate_micro_batches(stage: Stage, tables: Path, rows: int, size: int) -> list[float]:
    """Return the milliseconds of each micro-batch with as many rows, also into Parquet."""
    made = stage.spark.readStream.format(RATE).option("rowsPerBatch", max(1, rows)).load()
    frame = made.selectExpr("timestamp", f"lpad(cast(value as string), {size}, 'x') as body")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tables / "rate checkpoint"))
    query = writer.start(str(tables / "rate table"))
    try:
        wait_until(lambda: need_active(query) and len(progress(query)) > PARTS, LANDING_LIMIT, f"batches of {RATE}")
        time.sleep(RATE_SECONDS)
    finally:
        query.stop()
    return took(progress(query))[1:]


def progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return Spark's reports on the latest micro-batches that had rows."""
    reports = [json.loads(report.json) for report in query.recentProgress]
    return [report for report in reports if report["numInputRows"]]


def took(reports: Sequence[dict[str, Any]]) -> list[float]:
    """Return how many milliseconds each batch took."""
    return [float(report["durationMs"]["triggerExecution"]) for report in reports]


def _thirds(values: Sequence[float]) -> Iterator[Sequence[float]]:
    if len(values) < PARTS:
        raise Failed(f"only {len(values)} micro-batches were measured")
    for part in range(PARTS):
        yield values[len(values) * part // PARTS : len(values) * (part + 1) // PARTS]


def _delays(table: Path, edges: Sequence[float]) -> list[pa.Array]:
    """Return the milliseconds of the messages published between each two edges (µs)."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    parts: list[list[pa.Array]] = [[] for _ in edges[1:]]
    for file, committed in committed_files(table):
        times = pq.read_table(file, columns=["timestamp"])["timestamp"].combine_chunks()
        published = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        for part, low, high in zip(parts, edges, edges[1:], strict=False):
            chosen = published.filter(pc.and_(pc.greater_equal(published, low), pc.less(published, high)))
            part.append(pc.divide(pc.subtract(committed, chosen.cast(pa.float64())), 1000))
    return [pa.concat_arrays(part) for part in parts]


def committed_files(table: Path) -> Iterator[tuple[Path, float]]:
    """Return the files of a table, each with the time of its commit in microseconds.

    Every tenth entry of the sink's log repeats all the earlier ones: a file counts where it comes first.
    """
    known: set[str] = set()
    log = table / "_spark_metadata"
    for number in numbers():
        path = next((path for path in (log / str(number), log / f"{number}.compact") if path.exists()), None)
        if path is None:
            return
        committed = path.stat().st_mtime_ns / 1000
        for line in path.read_text().splitlines()[1:]:
            entry = json.loads(line)
            if entry["action"] == "add" and entry["path"] not in known:
                known.add(entry["path"])
                yield Path(entry["path"].removeprefix("file://")), committed
