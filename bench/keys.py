"""What a key for each publish costs: in throughput, memory and time to start."""

from __future__ import annotations

import argparse
from typing import Final

from bench.brokers import Broker, nsqd_factory, running_nsqd
from bench.memory import resident_megabytes
from bench.report import Benchmark, Row, at_least, at_most
from bench.work import Failed, Work, say

SIZE: Final = 200
TOPIC: Final = "bench_keys"
SHAPES: Final = {  # connections, messages in a command, commands in flight
    "PUB, 50 connections": (50, 1, 1),
    "PUB, 2 connections": (2, 1, 1),
    "PUB 64 in flight, 4 connections": (4, 1, 64),
    "MPUB of 10, 4 connections": (4, 10, 1),
}
DEMANDED: Final = "PUB, 50 connections"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (default: %(default)s)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="keys to remember (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    rows = []
    for name, shape in SHAPES.items():
        rates: dict[bool, list[float]] = {False: [], True: []}
        for number in range(settings.runs):
            for has_keys in (number % 2 == 0, number % 2 == 1):  # who comes first alternates
                with nsqd_factory(work, settings.build, settings.flag)() as broker:
                    rates[has_keys].append(_rate(work, broker, shape, settings.seconds, has_keys=has_keys))
            say(f"{name}: {rates[True][-1]:,.0f} msg/s with keys, {rates[False][-1]:,.0f} without")
        demand = at_least(0.9) if name == DEMANDED else None
        rows.append(Row(name, "msg/s", tuple(rates[True]), demand, "without keys", tuple(rates[False])))
    return rows + _memory(settings, work)


def _rate(work: Work, broker: Broker, shape: tuple[int, int, int], seconds: float, *, has_keys: bool) -> float:
    connections, batch, window = shape
    more = ("keys=bench1:",) if has_keys else ()
    broker.make_channel(TOPIC)
    load = work.load("pub", broker.tcp_port, TOPIC, connections, batch, SIZE, seconds, window, *more, at_most=seconds)
    if load["errors"]:
        raise Failed(f"{load['errors']:.0f} publishes failed")
    return load["msgs_per_s"]


def _memory(settings: argparse.Namespace, work: Work) -> list[Row]:
    """Publish as many with keys as without, and compare what nsqd's memory has grown by; then start with the keys."""
    count, grown = settings.messages, {}
    rows = []
    for has_keys in (False, True):
        with work.new_folder("keys") as folder:
            flags = [*settings.flag, "--idempotence-window=1h", f"--idempotence-keys={count}"]
            with running_nsqd(folder, settings.build, flags) as (broker, process):
                broker.make_channel(TOPIC)
                before = resident_megabytes(broker)
                more = ("keys=bench1:",) if has_keys else ()
                work.load(*("pub", broker.tcp_port, TOPIC, 50, 1, SIZE, 600, 1, f"count={count}", *more), at_most=600)
                grown[has_keys] = resident_megabytes(broker) - before
                process.kill()
                process.wait()
            with running_nsqd(folder, settings.build, flags) as (broker, _):
                rows.append(
                    Row(f"ready after kill -9, {'with' if has_keys else 'without'} keys", "s", (broker.ready_after,))
                )
    taken = grown[True] - grown[False]
    return [Row(f"memory of {count:,} keys", "MB", (taken,), at_most(100)), *rows]


BENCHMARK: Final = Benchmark("keys", "What does a key for each publish cost?", add_arguments, run, at_most=15)
