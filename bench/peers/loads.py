"""The loads: what each of them does to a server, and what is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from bench.peers.loader import DONE, SHORT, Loader
from bench.servers import Server
from bench.work import Failed, Load
from bench.workloads import SIZE, WORKLOADS, Workload

WINDOW: Final = 500  # messages that a consumer has at a time
TIMES: Final = {"p50": "p50_us", "p99": "p99_us", "p99.9": "p999_us"}
PACES: Final = {"latency1000": 1_000, "latency20000": 20_000}
RATE, TIME, MEMORY, START, LOST = "msg/s", "µs", "MB", "s", "%"  # units


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the tables."""

    name: str
    text: str
    unit: str

    @property
    def is_more_better(self) -> bool:
        return self.unit == RATE


RATES: Final = (
    Figure("pub2", "publish one at a time, 2 connections", RATE),
    Figure("pub50", "publish one at a time, 50 connections", RATE),
    Figure("deep", "publish, 64 in flight on each of 4 connections", RATE),
    Figure("batch10", f"publish {WORKLOADS['mpub10'].batch} at a time, 16 connections", RATE),
    Figure("batch", f"publish {WORKLOADS['mpub'].batch} at a time, 2 connections", RATE),
    Figure("consume", "consume and acknowledge, 2 connections", RATE),
)
LATENCIES: Final = tuple(
    Figure(f"{name} {quantile}", f"end to end at {pace:,} msg/s, {quantile}", TIME)
    for name, pace in PACES.items()
    for quantile in TIMES
)
BACKLOG: Final = (
    Figure("backlog memory", "memory with the backlog", MEMORY),
    Figure("backlog fill", "fill it, in batches", RATE),
    Figure("backlog start", "start with it, until a message comes", START),
)
# Of a broker that is measured by its own client.
CLIENT_TIMES: Final = {
    it.name: Figure(f"{it.name} client", f"{it.text}: the client's processor time for a message", TIME) for it in RATES
}
KILL: Final = (Figure("kill", "lost by kill -9 of what was acknowledged", LOST),)
FIGURES: Final = (*RATES, *LATENCIES, *BACKLOG, *KILL)
# What --loads can name.
LOADS: Final = (*(figure.name for figure in RATES), *PACES, "backlog", "kill")
ONLY_PUBLISHING: Final = tuple(figure.name for figure in RATES if figure.name != "consume")


def part_of(figure: Figure) -> str:
    """Return the part of a run that yields this figure, and that fails as a whole."""
    return "backlog" if figure in BACKLOG else "kill" if figure in KILL else "rates"


Measured = dict[str, float]  # by the figure's name


@dataclass(slots=True)
class Bench:
    """One server that runs, and what a load needs besides."""

    loader: Loader
    server: Server
    queue: str  # the start of its queues' names
    seconds: float
    batches: str = ""  # the queue that the load of batches has filled ...
    left: int = 0  # ... with at least so many messages

    def declare(self, name: str) -> str:
        queue = f"{self.queue}_{name}"
        self.loader.run("declare", self.server, queue, at_most=60)
        return queue

    @property
    def warm(self) -> float | None:
        """Return the seconds for which the load generator warms up. None: it doesn't."""
        return self.server.warm_up * self.seconds or None

    def publish(self, queue: str, load: Workload) -> Load:
        return self.loader.run(
            *("pub", self.server, queue),
            at_most=self.seconds,
            seconds=self.seconds,
            size=load.size,
            conns=load.connections,
            batch=load.batch,
            window=load.window,
            warm=self.warm,
        )


def _publish(name: str, workload: str) -> Callable[[Bench], Measured]:
    return lambda bench: _rate(name, bench.publish(bench.declare(name), WORKLOADS[workload]))


def _rate(name: str, load: Load) -> Measured:
    figures = {name: load["msgs_per_s"]}
    if "client_us" in load:
        figures[CLIENT_TIMES[name].name] = load["client_us"]
    return figures


def _batches(bench: Bench) -> Measured:
    bench.batches = bench.declare("batch")
    load = bench.publish(bench.batches, WORKLOADS["mpub"])
    bench.left = int(load["msgs"])
    return _rate("batch", load)


def _consume(bench: Bench) -> Measured:
    """Consume what a load of batches has left, so that there is about a second's worth."""
    if not bench.batches:
        _batches(bench)
    load = bench.loader.run(
        *("sub", bench.server, bench.batches),
        at_most=bench.seconds,
        allow=(DONE, SHORT),
        seconds=bench.seconds,
        count=bench.left,
        size=SIZE,
        conns=2,
        window=WINDOW,
        warm=bench.warm,
    )
    if not load["msgs_per_s"]:
        raise Failed(f"{bench.server.program}: nothing came to the consumers while their clock ran")
    return _rate("consume", load)


PUBLISHING: Final[Mapping[str, Callable[[Bench], Measured]]] = {
    **{name: _publish(name, name) for name in ("pub2", "pub50", "deep")},
    "batch10": _publish("batch10", "mpub10"),
    "batch": _batches,
    "consume": _consume,
}


def latency(bench: Bench, name: str) -> Load:
    """Measure at a steady pace. `behind` is 1 if the server fell behind, so that there is no latency to speak of."""
    queue = bench.declare(name)
    consumer = 1 if bench.server.protocol == "beanstalk" else WINDOW  # a second reserve would hold up the deletes
    return bench.loader.run(
        *("lat", bench.server, queue),
        at_most=bench.seconds,
        allow=(DONE, SHORT),
        seconds=bench.seconds,
        size=SIZE,
        rate=PACES[name],
        window=consumer,
        warm=bench.warm,
    )


def measure_one(
    loader: Loader, start: Callable[[ExitStack], Server], queue: str, loads: tuple[str, ...], seconds: float
) -> tuple[Measured, dict[str, str]]:
    """Measure a server that `start` gives. Return the figures, and why some are missing.

    Latency comes first, as it would feel what the other loads leave to be flushed. A server that fell behind is
    started anew, as it would go on with what it has been sent.
    """
    figures: Measured = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        bench = Bench(loader, start(stack), queue, seconds)
        for name in (it for it in PACES if it in loads):
            load = latency(bench, name)
            if load["behind"]:
                missing |= {f"{name} {quantile}": "falls behind" for quantile in TIMES}
                stack.close()
                bench.server = start(stack)
                continue
            figures |= {f"{name} {quantile}": load[key] for quantile, key in TIMES.items()}
        for name, measure in PUBLISHING.items():
            if name in loads:
                figures |= measure(bench)
    return figures, missing
