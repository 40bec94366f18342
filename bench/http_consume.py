"""Consuming over HTTP: one connection takes, another finishes. How many messages a second, and for how much processor time?"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Final

from bench.brokers import Broker, nsqd_factory
from bench.report import Benchmark, Row, at_least
from bench.throughput import Measured
from bench.work import ROOT, SLACK, Failed, Work, parsed, say

TOPIC: Final = "bench_http"
CHANNEL: Final = "ch"
DEMANDED: Final = 50_000  # msg/s with 500 messages at a time
_AT_ONCE: Final = (10, 100, 500, 1000)
_WITH_DEMAND: Final = 500
_FILL: Final = 300.0  # seconds that publishing may take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: %(default)s)")
    parser.add_argument("--messages", type=int, default=200_000, help="consumed in one run (default: %(default)s)")
    parser.add_argument("--size", type=int, default=200, help="bytes of a body (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    fresh = nsqd_factory(work, settings.build, settings.flag)
    figures: dict[int, list[Measured]] = {most: [] for most in _AT_ONCE}
    for _ in range(settings.runs):
        for most in _AT_ONCE:
            with fresh() as broker:
                measured = _consumed(
                    broker, work, most, settings.messages if most >= 100 else settings.messages // 10, settings.size
                )
            figures[most].append(measured)
            say(f"max={most:5} {measured.rate:12,.0f} msg/s  {measured.cost:6.2f} µs each")
    return [_row(most, found) for most, found in figures.items()]


def _row(most: int, found: list[Measured]) -> Row:
    cost = sorted(one.cost for one in found)[len(found) // 2]
    demand = at_least(DEMANDED) if most == _WITH_DEMAND else None
    rates = tuple(one.rate for one in found)
    return Row(
        f"POST /sub with max={most}, and POST /fin", "msg/s", rates, demand, note=f"processor {cost:.2f} µs each"
    )


def _consumed(broker: Broker, work: Work, most: int, count: int, size: int) -> Measured:
    broker.make_channel(TOPIC, CHANNEL)
    work.load("pub", broker.tcp_port, TOPIC, 1, 200, size, _FILL, f"count={count}", at_most=_FILL)
    command = [sys.executable, "-m", "bench.http_client", str(broker.http_port), TOPIC, CHANNEL, str(most), str(count)]
    before = broker.processor_seconds()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_FILL + SLACK,
    )
    used = broker.processor_seconds() - before
    if done.returncode:
        raise Failed(f"{' '.join(command[1:])}: {done.stderr.decode().strip()}")
    load = parsed(done.stdout, 0)
    if left := broker.channel(TOPIC, CHANNEL)["in_flight_count"]:
        raise Failed(f"{left} messages are still in flight")
    return Measured(load["msgs_per_s"], used * 1e6 / max(1.0, load["msgs"]))


BENCHMARK: Final = Benchmark(
    "http_consume", "How fast is consuming over HTTP, 10 to 1,000 messages at a time?", add_arguments, run, at_most=15
)
