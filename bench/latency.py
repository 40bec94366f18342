"""The time of a message from the publisher's send to the consumer's receive, at a steady pace."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Final

from bench.brokers import Factory, external_factory, nsqd_factory, yardstick_factory
from bench.report import Benchmark, Demand, Row, at_most
from bench.work import Failed, Load, Work, say

SIZE: Final = 200
QUANTILES: Final[dict[str, tuple[str, Demand | None]]] = {
    "p50_us": ("p50", at_most(1000)),
    "p99_us": ("p99", at_most(10_000)),
    "p999_us": ("p99.9", None),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second (default: %(default)s)")
    parser.add_argument("--beside", type=int, default=100_000, help="MPUB load beside it, msg/s; 0: none")
    parser.add_argument("--broker", type=int, metavar="PORT", help="measure what listens here instead of a fresh nsqd")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    mine = external_factory(settings.broker) if settings.broker else nsqd_factory(work, settings.build, settings.flag)
    yardstick = yardstick_factory(work)
    quiet: list[Load] = []
    loaded: list[Load] = []
    ruler: list[Load] = []
    for number in range(settings.runs):
        order = [("measured", mine, 0, quiet), ("yardstick", yardstick, 0, ruler)]
        if settings.beside:
            order.append(("beside load", mine, settings.beside, loaded))
        for name, factory, beside, loads in order if number % 2 == 0 else reversed(order):
            load = _measure(work, factory, f"bench_lat_{number}_{beside}", beside, settings)
            loads.append(load)
            say(f"{name:>11} p50 {load['p50_us']:.0f} µs, p99 {load['p99_us']:.0f} µs, p99.9 {load['p999_us']:.0f} µs")
    rows = [
        # A ratio would hide the demand, which applies to the time itself.
        Row(f"{name} at {settings.rate:,} msg/s", "µs", _column(quiet, key), demand)
        for key, (name, demand) in QUANTILES.items()
    ]
    rows += [Row(f"{name} of the yardstick", "µs", _column(ruler, key)) for key, (name, _) in QUANTILES.items()]
    if settings.beside:
        rows += [
            Row(f"{name} beside {settings.beside:,} msg/s by MPUB", "µs", _column(loaded, key))
            for key, (name, _) in QUANTILES.items()
        ]
    return rows


def _measure(work: Work, factory: Factory, topic: str, beside: int, settings: argparse.Namespace) -> Load:
    seconds = settings.seconds
    with ExitStack() as stack:
        broker = stack.enter_context(factory())
        if beside:
            # Ends by itself after the latency run, which pauses 0.3 seconds before it sends.
            stack.enter_context(
                work.loading("pub", broker.tcp_port, topic + "_load", 2, 200, SIZE, seconds + 2, f"rate={beside}")
            )
        load = work.load(
            "lat", broker.tcp_port, topic, "ch", settings.rate, SIZE, seconds, at_most=seconds, allow=(0, 4)
        )
    if load["received"] < load["sent"] * 0.9:
        raise Failed(f"{load['received']:.0f} of {load['sent']:.0f} messages came")
    return load


def _column(loads: list[Load], key: str) -> tuple[float, ...]:
    return tuple(load[key] for load in loads)


BENCHMARK: Final = Benchmark("latency", "How long does a message take, end to end?", add_arguments, run, at_most=20)
