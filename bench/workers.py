"""How much workers do where one nsqd uses one core, and how soon a killed worker is back.

Both sides get the same load: as many processes of the load generator as there are workers, with the same connections.
One side is a single nsqd, which has them all, the other `nsqd --workers=2`, where each has a worker of its own.

On a machine with as few cores as this load takes, the rate says little. So each row has a second one: the rate at which
each nsqd process would use one whole core, which is its messages divided by its processor time. That is what enough
cores give, unless the workers cost each other time; that time is in the figure, as they run at the same time.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.report import Benchmark, Row, at_least, at_most
from bench.work import SLACK, Failed, Work, parsed, say

STEP: Final = 100  # between the ports of two workers
SIZE: Final = 200
TOPIC: Final = "bench_workers"
BACKLOG: Final = 400_000  # messages for a second of consuming, for each load process
LIMIT: Final = 60.0
STEADY: Final = 10.5  # seconds; longer than the life after which a death counts as a first one again
POLL: Final = 0.002

Nodes = list[Broker]


@dataclass(frozen=True)
class Kind:
    """One kind of load: what each load process does."""

    text: str
    mode: str
    arguments: tuple[object, ...]  # after topic and channel
    backlog: int = 0  # messages to publish for each second before it begins


KINDS: Final = {
    "mpub": Kind("MPUB of 200, each load on 2 connections", "pub", (2, 200, SIZE)),
    "pub": Kind("PUB one at a time, each load on 25 connections", "pub", (25, 1, SIZE)),
    "sub": Kind("consume and FIN, each load on 2 connections", "sub", (2, 1000), backlog=BACKLOG),
}


@dataclass(frozen=True)
class Measured:
    rate: float  # messages a second, both loads together
    full: float  # the same with a whole core for each nsqd process
    busy: float  # cores that the nsqd processes used
    load_busy: float  # cores that the load used
    others_busy: float  # cores that everything else on this machine used


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="workers, and load processes (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="kills of a worker (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="ROW,...", help=f"some of: {', '.join(KINDS)}, kill")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    wanted = settings.only.split(",") if settings.only else [*KINDS, "kill"]
    if unknown := set(wanted) - {*KINDS, "kill"}:
        raise Failed(f"unknown rows: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    for name, kind in KINDS.items():
        if name in wanted:
            rows += _compare(kind, settings, work)
    if "kill" in wanted:
        rows.append(_kills(settings, work))
    return rows


# One against two


def _compare(kind: Kind, settings: argparse.Namespace, work: Work) -> list[Row]:
    count = settings.workers
    sides: dict[int, list[Measured]] = {1: [], count: []}
    for number in range(settings.runs):
        # Each side is first in turn, so that a machine that speeds up or slows down favours neither.
        for workers in (1, count) if number % 2 == 0 else (count, 1):
            with _nodes(workers, settings, work) as nodes:
                measured = _measure(kind, settings, nodes, work)
            sides[workers].append(measured)
            say(
                f"{workers} x nsqd {kind.text:40} {measured.rate:12,.0f} msg/s, brokers {measured.busy:4.2f} cores, "
                f"load {measured.load_busy:4.2f}, others {measured.others_busy:4.2f}, "
                f"{measured.full:12,.0f} msg/s with a core each"
            )
    one, several = sides[1], sides[count]
    demand = at_least(0.8 * count)  # 1.6 times with two workers
    return [
        Row(
            kind.text,
            "msg/s",
            tuple(it.rate for it in several),
            demand,
            "one nsqd",
            tuple(it.rate for it in one),
            f"cores of brokers, load and others: {_cores(several)}; {_cores(one)}; of {os.cpu_count()}",
        ),
        Row(
            f"{kind.text}, with a core each",
            "msg/s",
            tuple(it.full for it in several),
            demand,
            "one nsqd",
            tuple(it.full for it in one),
        ),
    ]


def _cores(side: Sequence[Measured]) -> str:
    shares = ([it.busy for it in side], [it.load_busy for it in side], [it.others_busy for it in side])
    return " + ".join(f"{median(share):.2f}" for share in shares)


def _measure(kind: Kind, settings: argparse.Namespace, nodes: Nodes, work: Work) -> Measured:
    """Run the load processes, on a node each or all on the only one."""
    seconds = settings.seconds
    targets = nodes * (settings.workers // len(nodes))
    for node in nodes:
        node.make_channel(TOPIC)
    if kind.backlog:
        count = int(kind.backlog * seconds)
        for node in targets:
            work.load("pub", node.tcp_port, TOPIC, 2, 200, SIZE, 120, f"count={count}", at_most=120)
    before = [node.processor_seconds() for node in nodes]
    load_before, machine_before = _children_seconds(), _machine_seconds()
    began = time.monotonic()
    with ExitStack() as stack:
        loads = [
            stack.enter_context(work.loading(kind.mode, node.tcp_port, *_arguments(kind, seconds))) for node in targets
        ]
        outs = [load.communicate(timeout=seconds + SLACK)[0] for load in loads]
        if any(load.returncode for load in loads):
            raise Failed(f"a load ended with status {[load.returncode for load in loads]}")
    took = time.monotonic() - began
    used = [node.processor_seconds() - earlier for node, earlier in zip(nodes, before, strict=True)]
    load_used, machine_used = _children_seconds() - load_before, _machine_seconds() - machine_before
    said = [parsed(out, 0) for out in outs]
    counts = [it["msgs"] for it in said]
    by_node = counts if len(nodes) == len(counts) else [sum(counts)]
    return Measured(
        rate=sum(it["finished_per_s" if kind.mode == "sub" else "msgs_per_s"] for it in said),
        full=sum(count / each for count, each in zip(by_node, used, strict=True)),
        busy=sum(used) / took,
        load_busy=load_used / took,
        others_busy=max(0.0, machine_used - load_used - sum(used)) / took,
    )


def _arguments(kind: Kind, seconds: float) -> tuple[object, ...]:
    if kind.mode == "sub":
        return TOPIC, "ch", *kind.arguments, seconds, "quiet=0.5"
    return TOPIC, *kind.arguments, seconds


def _children_seconds() -> float:
    """Return the processor time of processes that have ended: while nodes run, those are load generators."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _machine_seconds() -> float:
    """Return the processor time of all processes of this machine."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = map(int, fields)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


# Killing one


def _kills(settings: argparse.Namespace, work: Work) -> Row:
    took: list[float] = []
    with work.new_folder("kills") as folder, _workers(settings.workers, folder, settings) as nodes:
        due = [time.monotonic() + STEADY] * len(nodes)
        for number in range(settings.kills):
            victim = number % len(nodes)
            # A second death soon after a start is followed by a pause, which is not what is asked here.
            time.sleep(max(0.0, due[victim] - time.monotonic()))
            took.append(_seconds_away(nodes[victim], folder / f"worker-{victim}"))
            due[victim] = time.monotonic() + STEADY
            say(f"worker {victim} answers {took[-1]:.2f} s after kill -9")
    return Row("a killed worker answers again after", "s", tuple(took), at_most(2.0))


def _seconds_away(node: Broker, folder: Path) -> float:
    """Kill the worker of this folder, and return the seconds until its successor accepts and answers."""
    killed = _pid_in(folder)
    began = time.monotonic()
    os.kill(killed, signal.SIGKILL)
    _wait_for(lambda: _pid_in(folder) != killed and _answers(node))
    return time.monotonic() - began


# Nodes


@contextmanager
def _nodes(count: int, settings: argparse.Namespace, work: Work) -> Iterator[Nodes]:
    """Run one nsqd without a supervisor, or several workers, on an empty folder."""
    with work.new_folder("nsqd") as folder:
        if count == 1:
            with running_nsqd(folder, settings.build, settings.flag) as (broker, _):
                yield [broker]
        else:
            with _workers(count, folder, settings) as nodes:
                yield nodes


@contextmanager
def _workers(count: int, folder: Path, settings: argparse.Namespace) -> Iterator[Nodes]:
    flags = [f"--workers={count}", *settings.flag]
    with running_nsqd(folder, settings.build, flags) as (first, process):
        assert first.http_port is not None
        ports = [(first.tcp_port + STEP * it, first.http_port + STEP * it) for it in range(count)]
        for tcp_port, http_port in ports:
            _wait_for(partial(_answers, Broker(tcp_port, http_port)))
        yield [
            Broker(tcp_port, http_port, _pid_in(folder / f"worker-{number}"))
            for number, (tcp_port, http_port) in enumerate(ports)
        ]
        stop_cleanly(process)  # rather than a kill, so that the workers have ended before their folders go


def _pid_in(folder: Path) -> int:
    """Return the process that owns a data path; 0: none can be read."""
    try:
        return int(json.loads((folder / "owner.json").read_text())["pid"])
    except (OSError, ValueError):
        return 0


def _answers(node: Broker) -> bool:
    try:
        return node.get("/ping") == b"OK"
    except (OSError, http.client.HTTPException):
        return False


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"a worker does not answer after {LIMIT:.0f} seconds")
        time.sleep(POLL)


BENCHMARK: Final = Benchmark(
    "workers",
    "What do workers do that one nsqd does not, and how soon is a killed one back?",
    add_arguments,
    run,
    at_most=20,
)
