"""How much workers do where one nsqd uses one core, and how soon a killed worker is back.

Both sides get the same load: as many processes of the load generator as there are workers, with the same connections.
One side is a single nsqd, which has them all, the other `nsqd --workers=2`, where each has a worker of its own.

On a machine with as few cores as this load takes, the rate says little. So each row has a second one: the rate at which
each nsqd process would use one whole core, which is its messages divided by its processor time. That is what enough
cores give, unless the workers cost each other time; that time is in the figure, as they run at the same time.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.brokers import Broker, running_nsqd, stop_cleanly
from bench.processes import wait_until
from bench.report import Benchmark, Row, at_least, at_most
from bench.runner import Compared, Measured, chosen
from bench.settings import Settings
from bench.work import SLACK, Failed, Work, parsed, say
from bench.workloads import CHANNEL, WORKLOADS, arguments, fill, rate_of
from scripts.command_line import option

STEP: Final = 100  # between the ports of two workers
TOPIC: Final = "bench_workers"
LOADS: Final = {"mpub": "mpub", "pub": "pub25", "sub": "sub1000"}  # rows, and what each load process does
KILL: Final = "kill"
ONE: Final = "one nsqd"
LIMIT: Final = 60.0
STEADY: Final = 10.5  # seconds; longer than the life after which a death counts as a first one again
POLL: Final = 0.002

Nodes = list[Broker]


@dataclass(kw_only=True)
class WorkersSettings(Settings):
    runs: int = option(5, "runs of each row")
    seconds: float = option(3.0, "length of one run")
    workers: int = option(2, "workers, and load processes")
    kills: int = option(10, "kills of a worker")
    only: str = option("", f"some of: {', '.join(LOADS)}, {KILL}", word="ROW,...")


def run(settings: WorkersSettings, work: Work) -> list[Row]:
    wanted = chosen(settings.only, [*LOADS, KILL])
    rows = [row for name, load in LOADS.items() if name in wanted for row in _compare(load, settings, work)]
    return [*rows, _kills(settings, work)] if KILL in wanted else rows


# One against several


def _compare(load: str, settings: WorkersSettings, work: Work) -> list[Row]:
    several = f"{settings.workers} workers"
    sides = {
        name: partial(_measure, load, count, settings, work) for name, count in ((ONE, 1), (several, settings.workers))
    }
    compared = Compared(sides, settings.runs)
    shares = (
        " + ".join(f"{median(compared.values(side, who)):.2f}" for who in ("brokers", "load", "others"))
        for side in (several, ONE)
    )
    note = f"cores of brokers, load and others: {'; '.join(shares)}; of {os.cpu_count()}"
    text = f"{WORKLOADS[load].text} for each load"
    demand = at_least(0.8 * settings.workers)  # 1.6 times with two workers
    return [
        compared.row("rate", text, several, ONE, demand=demand, note=note),
        compared.row("full", f"{text}, with a core each", several, ONE, demand=demand),
    ]


def _measure(load: str, count: int, settings: WorkersSettings, work: Work, number: int) -> dict[str, Measured]:
    with _nodes(count, settings, work) as nodes:
        return _measure_on(nodes, load, settings, work)


def _measure_on(nodes: Nodes, name: str, settings: WorkersSettings, work: Work) -> dict[str, Measured]:
    """Run the load processes, on a node each or all on the only one."""
    load, seconds = WORKLOADS[name], settings.seconds
    targets = nodes * (settings.workers // len(nodes))
    for node in nodes:
        node.make_channel(TOPIC, CHANNEL)
    if load.backlog:
        for node in targets:
            fill(work, node, TOPIC, int(load.backlog * seconds))
    before = [node.processor_seconds() for node in nodes]
    load_before, machine_before = _children_seconds(), _machine_seconds()
    began = time.monotonic()
    with ExitStack() as stack:
        words = arguments(load, TOPIC, seconds)
        loads = [stack.enter_context(work.loading(load.mode, node.tcp_port, *words)) for node in targets]
        outs = [it.communicate(timeout=seconds + SLACK)[0] for it in loads]
        if any(it.returncode for it in loads):
            raise Failed(f"a load ended with status {[it.returncode for it in loads]}")
    took = time.monotonic() - began
    used = [node.processor_seconds() - earlier for node, earlier in zip(nodes, before, strict=True)]
    load_used, machine_used = _children_seconds() - load_before, _machine_seconds() - machine_before
    said = [parsed(out, 0) for out in outs]
    counts = [it["msgs"] for it in said]
    by_node = counts if len(nodes) == len(counts) else [sum(counts)]
    return {
        "rate": Measured(sum(it[rate_of(load)] for it in said)),
        "full": Measured(sum(count / each for count, each in zip(by_node, used, strict=True))),
        "brokers": Measured(sum(used) / took),  # cores
        "load": Measured(load_used / took),
        "others": Measured(max(0.0, machine_used - load_used - sum(used)) / took),
    }


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


def _kills(settings: WorkersSettings, work: Work) -> Row:
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
    wait_until(lambda: _pid_in(folder) != killed and _answers(node), LIMIT, "the worker answers again", POLL)
    return time.monotonic() - began


# Nodes


@contextmanager
def _nodes(count: int, settings: WorkersSettings, work: Work) -> Iterator[Nodes]:
    """Run one nsqd without a supervisor, or several workers, on an empty folder."""
    with work.new_folder("nsqd") as folder:
        if count == 1:
            with running_nsqd(folder, settings.build, settings.flag) as (broker, _):
                yield [broker]
        else:
            with _workers(count, folder, settings) as nodes:
                yield nodes


@contextmanager
def _workers(count: int, folder: Path, settings: WorkersSettings) -> Iterator[Nodes]:
    flags = [f"--workers={count}", *settings.flag]
    with running_nsqd(folder, settings.build, flags) as (first, process):
        assert first.http_port is not None
        ports = [(first.tcp_port + STEP * it, first.http_port + STEP * it) for it in range(count)]
        for tcp_port, http_port in ports:
            wait_until(partial(_answers, Broker(tcp_port, http_port)), LIMIT, "each worker answers", POLL)
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


BENCHMARK: Final = Benchmark(
    "workers",
    "What do workers do that one nsqd does not, and how soon is a killed one back?",
    WorkersSettings,
    run,
    at_most=20,
)
