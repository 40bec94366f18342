"""The table of workloads: what the load generator does to a broker. Every measurement of rates takes its loads from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.brokers import Broker
from bench.runner import Measured
from bench.work import Failed, Work

SIZE: Final = 200  # bytes of a message, unless a load has another size
CHANNEL: Final = "ch"
_FILL_LIMIT: Final = 600.0


@dataclass(frozen=True, slots=True)
class Workload:
    text: str
    mode: str  # of the load generator: pub, http or sub
    connections: int
    batch: int = 1  # messages in one command; of a consumer its RDY
    window: int = 1  # commands in flight on each connection
    size: int = SIZE
    follows: str = ""  # the load before it, in the same process, whose messages it consumes ...
    backlog: int = 0  # ... or how many are published for each second before it begins, ...
    backlog_batch: int = 200  # ... so many at a time


WORKLOADS: Final[Mapping[str, Workload]] = {
    "mpub": Workload("MPUB of 200, 2 connections", "pub", 2, 200),
    "sub": Workload("consume and FIN, 2 connections", "sub", 2, 2500, follows="mpub"),
    "pub2": Workload("PUB one at a time, 2 connections", "pub", 2),
    "pub50": Workload("PUB one at a time, 50 connections", "pub", 50),
    "mpub10": Workload("MPUB of 10, 16 connections", "pub", 16, 10),
    "sub10k": Workload(
        "consume and FIN 10 KiB, 2 connections", "sub", 2, 200, size=10 << 10, backlog=50_000, backlog_batch=10
    ),
    "rdy1": Workload("consume with RDY 1, 10 connections", "sub", 10, 1, backlog=100_000),
    "deep": Workload("PUB 64 in flight, 4 connections", "pub", 4, 1, 64),
    "http": Workload("POST /pub, 16 connections", "http", 16),
    # Not in `throughput`: against what http, headers, keys, a store and workers are measured
    "pub16": Workload("PUB one at a time, 16 connections", "pub", 16),
    "mpub10x4": Workload("MPUB of 10, 4 connections", "pub", 4, 10),
    "deep1000": Workload("PUB, 1,000 in flight on 4", "pub", 4, 1, 1000),
    "deepmpub": Workload("MPUB of 200, 16 in flight on 4", "pub", 4, 200, 16),
    "pub25": Workload("PUB one at a time, 25 connections", "pub", 25),
    "sub1000": Workload("consume and FIN with RDY 1000, 2 connections", "sub", 2, 1000, backlog=400_000),
}


def together(names: Sequence[str]) -> list[list[str]]:
    """Return the loads in groups that share a process: one that consumes what another leaves runs behind it."""
    groups: dict[str, list[str]] = {}
    for name in names:
        first = WORKLOADS[name].follows or name
        group = groups.setdefault(first, [first])
        if name not in group:
            group.append(name)
    return [*groups.values()]


def measure(
    work: Work,
    broker: Broker,
    names: Sequence[str],
    topic: str,
    seconds: float,
    *more: str,
    size: int | None = None,
) -> dict[str, Measured]:
    """Run loads one after the other on a topic. `more` are keys of the load generator."""
    make_channel(work, broker, topic)
    return {name: _measure(work, broker, WORKLOADS[name], topic, seconds, more, size) for name in names}


def make_channel(work: Work, broker: Broker, topic: str) -> None:
    """Make a channel over TCP, as the yardstick has no HTTP."""
    work.load("sub", broker.tcp_port, topic, CHANNEL, 1, 1, 0.1, at_most=1)


def _measure(
    work: Work,
    broker: Broker,
    load: Workload,
    topic: str,
    seconds: float,
    more: Sequence[str],
    size: int | None,
) -> Measured:
    if load.backlog:
        fill(work, broker, topic, int(load.backlog * seconds), load.size, load.backlog_batch)
    before = broker.processor_seconds()
    words = (*arguments(load, topic, seconds, size), *more)
    done = work.load(load.mode, _port(load, broker), *words, at_most=seconds)
    used = broker.processor_seconds() - before
    if load.mode != "sub" and done["errors"]:
        raise Failed(f"{load.text}: {done['errors']:.0f} publishes failed")
    return Measured(done[rate_of(load)], used * 1e6 / max(1.0, done["msgs"]))


def arguments(load: Workload, topic: str, seconds: float, size: int | None = None) -> tuple[object, ...]:
    """Return the words of the load generator's command line behind the port."""
    if load.mode == "sub":
        return topic, CHANNEL, load.connections, load.batch, seconds, "quiet=0.5"
    return topic, load.connections, load.batch, size or load.size, seconds, load.window


def rate_of(load: Workload) -> str:
    return "finished_per_s" if load.mode == "sub" else "msgs_per_s"


def fill(work: Work, broker: Broker, topic: str, count: int, size: int = SIZE, batch: int = 200, *more: str) -> None:
    """Publish a backlog, which is not measured. Single messages are pipelined."""
    window = 1 if batch > 1 else 64
    words = (topic, 2, batch, size, _FILL_LIMIT, window, f"count={count}", *more)
    work.load("pub", broker.tcp_port, *words, at_most=_FILL_LIMIT)


def _port(load: Workload, broker: Broker) -> int:
    if load.mode != "http":
        return broker.tcp_port
    if broker.http_port is None:
        raise Failed("this load needs the broker's HTTP port")
    return broker.http_port
