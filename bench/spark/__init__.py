"""Spark on a topic: rows a second in and out, delay, the rate that it keeps up with, and recovery.

Each part has an nsqd of its own, and publisher, nsqd and Spark share the machine. If a source in the JVM can do the
same job, Spark's Parquet files or `rate-micro-batch`, that runs in turn with ours.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from bench.report import Benchmark, Row, at_most
from bench.spark import batches, landing, latency, recovery, sink
from bench.spark.settings import ONE_SIZE, SparkSettings
from bench.spark.stage import Stage
from bench.work import Failed, Work, say

MEASURES: Final[Mapping[str, Callable[[Stage, int], list[Row]]]] = {
    "batches": batches.measure,
    "sink": sink.measure,
    "latency": latency.measure,
    "landing": landing.measure,
    "highest": landing.measure_highest,
    "recovery": recovery.measure,
}


def run(settings: SparkSettings, work: Work) -> list[Row]:
    rows: list[Row] = []
    with Stage.open(settings, work) as stage:
        for part, size in _plan(settings):
            began = time.monotonic()
            rows += _rows_of(part, stage, size)
            say(f"-- {part}, {size} bytes: {time.monotonic() - began:.0f} s")
    return rows


def _plan(settings: SparkSettings) -> Iterator[tuple[str, int]]:
    """Return the parts in order. Recovery is last, because it has a Spark of its own."""
    for size in settings.sizes:
        for part in MEASURES:
            if part in settings.only and part != "recovery" and (part not in ONE_SIZE or size == settings.sizes[0]):
                yield part, size
    if "recovery" in settings.only:
        yield "recovery", settings.sizes[0]


def _rows_of(part: str, stage: Stage, size: int) -> list[Row]:
    """Return the part's rows. A part that fails is a missed demand, so that the figures of the others are kept."""
    try:
        return MEASURES[part](stage, size)
    except Exception as error:
        if not isinstance(error, Failed):
            traceback.print_exc()
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        say(f"{part} failed: {why}")
        return [Row(f"{part} of {size} bytes failed", "times", (1,), at_most(0), note=why)]


BENCHMARK: Final = Benchmark("spark", "How fast and how late is Spark on a topic?", SparkSettings, run, at_most=30)
