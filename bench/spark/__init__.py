"""Spark on a topic: rows a second in and out, delay, the rate that it keeps up with, and recovery.

Each part has an nsqd of its own, and publisher, nsqd and Spark share the machine. If a source in the JVM can do the
same job, Spark's Parquet files or `rate-micro-batch`, that runs in turn with ours.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from bench.report import Benchmark, Row, at_most
from bench.spark import batches, landing, latency, recovery, sink
from bench.spark.stage import Stage
from bench.work import Failed, Work, say

PARTS: Final[Mapping[str, Callable[[Stage, int], list[Row]]]] = {
    "batches": batches.measure,
    "sink": sink.measure,
    "latency": latency.measure,
    "landing": landing.measure,
    "highest": landing.measure_highest,
    "recovery": recovery.measure,
}
ONE_SIZE: Final = ("landing", "recovery")  # the demand is for one size, or size hardly matters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", type=_parts, default=tuple(PARTS), metavar="PART,...", help=f"some of: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--sizes",
        type=_numbers,
        default=(200, 1024),
        metavar="BYTES,...",
        help=f"of a message; {' and '.join(ONE_SIZE)} have the first one only (default: 200,1024)",
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="runs of each batch job and the sink (default: %(default)s)"
    )
    parser.add_argument("--count", type=int, default=1_000_000, help="messages to read or write (default: %(default)s)")
    parser.add_argument(
        "--megabytes",
        type=int,
        default=400,
        help="megabytes of messages at most, for large messages (default: %(default)s)",
    )
    parser.add_argument("--batch", type=int, default=200, help="messages in one MPUB (default: %(default)s)")
    parser.add_argument(
        "--rates",
        type=_numbers,
        default=(1_000, 10_000, 50_000),
        metavar="RATE,...",
        help="messages a second for latency (default: 1000,10000,50000)",
    )
    parser.add_argument("--seconds", type=int, default=15, help="seconds at each of these rates (default: %(default)s)")
    parser.add_argument(
        "--landing-rate", type=int, default=100_000, help="messages a second for landing (default: %(default)s)"
    )
    parser.add_argument(
        "--minute", type=int, default=60, help="seconds of landing, and of the highest rate (default: %(default)s)"
    )
    parser.add_argument("--tries", type=int, default=4, help="halvings until the highest rate (default: %(default)s)")
    parser.add_argument("--try-seconds", type=int, default=12, help="seconds of each try (default: %(default)s)")
    parser.add_argument(
        "--recovery-rate", type=int, default=10_000, help="messages a second for recovery (default: %(default)s)"
    )
    parser.add_argument("--kills", type=int, default=3, help="kill -9 of Spark (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    rows: list[Row] = []
    with Stage.open(settings, work) as stage:
        for part, size in _plan(settings):
            began = time.monotonic()
            rows += _rows_of(part, stage, size)
            say(f"-- {part}, {size} bytes: {time.monotonic() - began:.0f} s")
    return rows


def _plan(settings: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Return the parts in order. Recovery is last, because it has a Spark of its own."""
    for size in settings.sizes:
        for part in PARTS:
            if part in settings.only and part != "recovery" and (part not in ONE_SIZE or size == settings.sizes[0]):
                yield part, size
    if "recovery" in settings.only:
        yield "recovery", settings.sizes[0]


def _rows_of(part: str, stage: Stage, size: int) -> list[Row]:
    """Return the part's rows. A part that fails is a missed demand, so that the figures of the others are kept."""
    try:
        return PARTS[part](stage, size)
    except Exception as error:
        if not isinstance(error, Failed):
            traceback.print_exc()
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        say(f"{part} failed: {why}")
        return [Row(f"{part} of {size} bytes failed", "times", (1,), at_most(0), note=why)]


def _parts(text: str) -> tuple[str, ...]:
    asked = tuple(text.split(","))
    for part in asked:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"there is no part {part!r}; there are: {', '.join(PARTS)}")
    return asked


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


BENCHMARK: Final = Benchmark("spark", "How fast and how late is Spark on a topic?", add_arguments, run, at_most=30)
