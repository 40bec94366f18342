"""The time of a message from the publisher's send to the consumer's receive, at a steady pace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.brokers import Factory, external_factory, nsqd_factory, yardstick_factory
from bench.report import Benchmark, Demand, Row, at_most
from bench.runner import Compared, Measured
from bench.settings import Settings
from bench.work import Failed, Work
from bench.workloads import CHANNEL, SIZE
from scripts.command_line import option

QUANTILES: Final = {"p50": "p50_us", "p99": "p99_us", "p99.9": "p999_us"}
# A ratio would hide the demands, which apply to the time itself.
DEMANDS: Final[Mapping[str, Demand]] = {"p50": at_most(1000), "p99": at_most(10_000)}
MINE, YARDSTICK, BESIDE = "measured", "yardstick", "beside load"


@dataclass(kw_only=True)
class LatencySettings(Settings):
    runs: int = option(5, "runs of each row")
    seconds: float = option(3.0, "length of one run")
    rate: int = option(1000, "messages a second")
    beside: int = option(100_000, "MPUB load beside it, msg/s; 0: none")
    broker: int | None = option(None, "measure what listens here instead of a fresh nsqd", word="PORT")


def run(settings: LatencySettings, work: Work) -> list[Row]:
    mine = external_factory(settings.broker) if settings.broker else nsqd_factory(work, settings.build, settings.flag)
    sides: dict[str, Callable[[int], dict[str, Measured]]] = {
        MINE: partial(_measure, work, mine, settings, 0),
        YARDSTICK: partial(_measure, work, yardstick_factory(work), settings, 0),
    }
    names = {MINE: f"at {settings.rate:,} msg/s", YARDSTICK: "of the yardstick"}
    if settings.beside:
        sides[BESIDE] = partial(_measure, work, mine, settings, settings.beside)
        names[BESIDE] = f"beside {settings.beside:,} msg/s by MPUB"
    compared = Compared(sides, settings.runs)
    return [
        compared.row(name, f"{name} {words}", side, unit="µs", demand=DEMANDS.get(name) if side == MINE else None)
        for side, words in names.items()
        for name in QUANTILES
    ]


def _measure(work: Work, factory: Factory, settings: LatencySettings, beside: int, number: int) -> dict[str, Measured]:
    topic, seconds = f"bench_lat_{number}_{beside}", settings.seconds
    with factory() as broker, ExitStack() as stack:
        if beside:
            # Ends by itself after the latency run, which pauses 0.3 seconds before it sends.
            what = (f"{topic}_load", 2, 200, SIZE, seconds + 2, f"rate={beside}")
            stack.enter_context(work.loading("pub", broker.tcp_port, *what))
        load = work.load(
            *("lat", broker.tcp_port, topic, CHANNEL, settings.rate, SIZE, seconds), at_most=seconds, allow=(0, 4)
        )
    if load["received"] < load["sent"] * 0.9:
        raise Failed(f"{load['received']:.0f} of {load['sent']:.0f} messages came")
    return {name: Measured(load[key]) for name, key in QUANTILES.items()}


BENCHMARK: Final = Benchmark("latency", "How long does a message take, end to end?", LatencySettings, run, at_most=20)
