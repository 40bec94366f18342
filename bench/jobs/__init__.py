"""Job queues on nsqd and on Redis: jobs a second, and the memory of a worker while many jobs wait for their ETA.

Both sides have the same app, the same worker settings and a broker that keeps what it has confirmed (servers.py).
"""

from __future__ import annotations

import argparse
from typing import Final

from bench.jobs.libraries import LIBRARIES
from bench.jobs.rates import MEASURED, Rates, measure
from bench.report import Benchmark, Row, at_least
from bench.work import Work, say

OURS: Final = "nsq"
OTHER: Final = "redis"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library",
        type=_libraries,
        default=tuple(LIBRARIES),
        metavar="NAME,...",
        help=f"some of: {', '.join(LIBRARIES)} (default: all)",
    )
    parser.add_argument("--runs", type=int, default=5, help="runs on each broker (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=5_000, help="jobs of a run (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    return [row for library in settings.library for row in _rates(settings, work, library)]


def _rates(settings: argparse.Namespace, work: Work, library: str) -> list[Row]:
    found: dict[str, list[Rates]] = {OURS: [], OTHER: []}
    for number in range(settings.runs):
        for broker in (OURS, OTHER) if number % 2 == 0 else (OTHER, OURS):  # who comes first alternates
            found[broker].append(measure(work, library, broker, settings.jobs, settings.build.python()))
            rates = ", ".join(f"{what} {rate:,.0f}" for what, rate in found[broker][-1].items())
            say(f"{library:>8} on {broker:>5}: {rates} jobs/s")
    return [
        Row(
            f"{library}, {what}",
            "jobs/s",
            tuple(rates[what] for rates in found[OURS]),
            at_least(1.0),
            OTHER,
            tuple(rates[what] for rates in found[OTHER]),
        )
        for what in MEASURED
    ]


def _libraries(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in LIBRARIES]:
        raise argparse.ArgumentTypeError(f"unknown libraries: {', '.join(unknown)}")
    return names


BENCHMARK: Final = Benchmark(
    "jobs", "How quick are job queues on nsqd, beside the same on Redis?", add_arguments, run, at_most=60
)
