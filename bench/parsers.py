"""The cost of hostile bodies for the parsers that run on a loop, in this process; see bench/hostile_bodies.py."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Final

from bench.hostile_bodies import hostile_bodies
from bench.report import Benchmark, Row, at_most
from bench.work import Work

QUESTION: Final = "how long does a hostile body keep a parser, and so everybody else's loop?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each body (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    return [
        Row(
            hostile.name,
            "ms of processor time",
            tuple(milliseconds(hostile.work) for _ in range(settings.runs)),
            at_most(hostile.most),
        )
        for hostile in hostile_bodies()
    ]


def milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


BENCHMARK: Final = Benchmark("parsers", QUESTION, add_arguments, run, at_most=10)
