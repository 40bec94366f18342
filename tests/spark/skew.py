"""Windows over lanes of very different sizes, in limited batches: not one message may come late.

    python -m tests.spark.skew            # the rule alone for every limit and skew, and Spark for two of them
    python -m tests.spark.skew --spark    # Spark for every one of them

120,800 messages of 40 seconds lie in two nodes' logs. With a watermark of 5 seconds a batch that takes one lane too far
makes messages of the other one late, and they are dropped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from nsqd.broker.batch import Receipt
from nsqpipe.aggregate import Aggregate, start_aggregating
from nsqpipe.running import run_queries
from nsqpipe.session import open_session
from pyspark_nsq.lanes import Lane
from pyspark_nsq.reports import late_rows_of
from pyspark_nsq.source.queries import From
from pyspark_nsq.source.sharing import Limit
from pyspark_nsq.stores.storage import place_of
from scripts.command_line import option, read_options
from tests.nsqd.log.batches import make_batch
from tests.nsqd.log.harness import opened
from tests.support.process import Nsqd
from tests.support.simulated_lanes import Reading, Record, SimulatedLane
from tests.support.spark import KEPT, address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES: Final = 120_800
SECONDS: Final = 40
WATERMARK: Final = 5
LIMITS: Final = (1_000, 5_000, 20_000, 50_000)
SKEWS: Final = (1, 3, 10, 30, 150, 1_000)
IN_SPARK: Final = ((150, 20_000), (1_000, 50_000))
TOPIC: Final = "skewed"
_BODY: Final = b"x" * 100
_TOGETHER: Final = 20  # messages in a record of the large lane

Take = Callable[[Reading, int], Mapping[Lane, range]]


def sizes(skew: int) -> tuple[int, int]:
    small = round(MESSAGES / (skew + 1))
    return MESSAGES - small, small


def lanes(skew: int) -> dict[Lane, SimulatedLane]:
    large, small = sizes(skew)
    return {
        Lane("large", TOPIC, "log"): evenly(large, _TOGETHER),
        Lane("small", TOPIC, "log"): evenly(small, min(_TOGETHER, max(1, small // 800))),
    }


def evenly(count: int, together: int) -> SimulatedLane:
    records = []
    for first in range(0, count, together):
        here = min(together, count - first)
        records.append(Record(first * SECONDS * 10**9 // count, here, 56 + here * (4 + len(_BODY))))
    return SimulatedLane(records)


# Without Spark


def take_level(reading: Reading, limit: int) -> Mapping[Lane, range]:
    return reading.take(Limit(limit))


def late(reading: Reading, limit: int, take: Take = take_level) -> int:
    """Return how many messages a watermark drops, because they are older than it when their batch comes."""
    newest, dropped = 0, 0
    while reading.rows_left:
        watermark = newest - WATERMARK * 10**9
        for lane, span in take(reading, limit).items():
            known = reading.lanes[lane]
            dropped += min(span.stop, max(span.start, known.up_to(watermark - 1))) - span.start
            newest = max(newest, known.time_of(span.stop - 1))
    return dropped


# Spark


@dataclass(frozen=True, slots=True)
class Result:
    published: int
    counted: int
    dropped: int
    batches: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.counted:,} of {self.published:,} counted, {self.dropped:,} late, "
            f"{self.batches} batches in {self.seconds:.1f} s"
        )


def run(spark: SparkSession, folder: Path, *, skew: int, limit: int) -> Result:
    reports: list[Mapping[str, Any]] = []
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(Nsqd(written(folder / lane.node, known), KEPT)) for lane, known in lanes(skew).items()
        ]
        began = time.monotonic()
        counted = aggregated(
            spark, folder, nodes, {"maxRowsPerTrigger": str(limit)}, observers=[lambda _, it: reports.append(it)]
        )
        seconds = time.monotonic() - began
    return Result(MESSAGES, counted, sum(map(late_rows_of, reports)), len(reports), seconds)


def aggregated(
    spark: SparkSession, folder: Path, nodes: Sequence[Nsqd], options: Mapping[str, str], **more: Any
) -> int:
    """Return how many messages windows count when everything has been read, from the folder's checkpoint on."""
    job = Aggregate(
        source=From(topics=(TOPIC,), nsqd=tuple(map(address, nodes)), options=options),
        window_seconds=5,
        watermark_seconds=WATERMARK,
        checkpoint=str(folder / "checkpoint"),
        results=place_of(str(folder / "results.json")),
        keep=1000,
        table=None,
        every="",
        until_now=True,
    )
    run_queries(spark, lambda: start_aggregating(spark, job), **more)
    windows = json.loads((folder / "results.json").read_text())["topics"][TOPIC]
    return sum(window["messages"] for window in windows)


def written(path: Path, lane: SimulatedLane, *, minutes_ago: int = 10) -> Path:
    """Make a data path with such a lane."""
    start = (time.time_ns() // 10**10 - 6 * minutes_ago) * 10**10
    path.mkdir()
    with opened(path) as store:
        log = store.log(TOPIC)
        for record in lane.records:
            log.append(make_batch(log.tail, [_BODY] * record.count, timestamp=start + record.time), Receipt())
            store.store.write_logs()
        store.checkpoint()
    return path


def _session() -> SparkSession:
    return open_session("skew", master="local[2]", remote="", conf={"spark.sql.shuffle.partitions": "2"}, log=None)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(frozen=True, kw_only=True)
class SkewOptions:
    spark: bool = option(False, "Spark for every limit and skew")


def main() -> int:
    arguments = read_options(SkewOptions, name="python -m tests.spark.skew", about=(__doc__ or "").splitlines()[0])
    is_right = True
    for skew, limit in product(SKEWS, LIMITS):
        reading = Reading(lanes(skew), points=250)
        counted = MESSAGES - late(reading, limit)
        is_right &= counted == MESSAGES
        _say(f"rule   1:{skew:<5} limit {limit:>6,}: {counted:,} of {MESSAGES:,}, {reading.questions} questions")
    spark = _session()
    for skew, limit in product(SKEWS, LIMITS) if arguments.spark else IN_SPARK:
        with TemporaryDirectory(prefix="skew-") as folder:
            result = run(spark, Path(folder), skew=skew, limit=limit)
        is_right &= (result.counted, result.dropped) == (MESSAGES, 0)
        _say(f"spark  1:{skew:<5} limit {limit:>6,}: {result}")
    spark.stop()
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
