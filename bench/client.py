"""Our client library compared with others: one process, one connection, the same nsqd, in the same run."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from statistics import median
from typing import Final

from bench.brokers import Broker, nsqd_factory
from bench.report import Benchmark, Row, at_least
from bench.work import ROOT, SLACK, Failed, Load, Work, parsed, say

OURS: Final = "nsqclient"
OTHERS: Final = ("pynsq", "gnsq", "ansq")
MODES: Final = {
    "one": "publish, one at a time",
    "many": "publish, 64 in flight",
    "mpub": "publish 200 at once, 4 in flight",
    "sub": "consume and finish",
}
_ENOUGH: Final = 200_000  # messages for each second of consuming


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (default: %(default)s)")
    parser.add_argument("--only", default=",".join(MODES), metavar="MODE,...", help=f"some of: {', '.join(MODES)}")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    modes = settings.only.split(",")
    if unknown := set(modes) - MODES.keys():
        raise Failed(f"unknown modes: {', '.join(sorted(unknown))}")
    fresh = nsqd_factory(work, settings.build, settings.flag)
    loads: dict[tuple[str, str], list[Load]] = {}
    clients = (OURS, *OTHERS)
    for mode in modes:
        for number in range(settings.runs):
            at = number % len(clients)  # each client is first in turn
            with fresh() as broker:
                for client in clients[at:] + clients[:at]:
                    topic = f"bench_{mode}_{client}"
                    if mode == "sub":
                        _fill(work, broker, topic, settings.seconds)
                    load = _load(broker, client, mode, topic, settings.seconds)
                    loads.setdefault((mode, client), []).append(load)
                    say(f"{client:>10} {mode:5} {load['msgs_per_s']:12,.0f}  {load['cpu_us']:6.2f} µs each")
    return [_row(mode, other, loads) for mode in modes for other in OTHERS]


def _row(mode: str, other: str, loads: dict[tuple[str, str], list[Load]]) -> Row:
    mine, theirs = loads[mode, OURS], loads[mode, other]
    costs = [median(load["cpu_us"] for load in side) for side in (mine, theirs)]
    return Row(
        MODES[mode],
        "msg/s",
        tuple(load["msgs_per_s"] for load in mine),
        at_least(1.0),
        other,
        tuple(load["msgs_per_s"] for load in theirs),
        f"the client's processor {costs[0]:.2f} µs, {costs[1]:.2f} µs a message",
    )


def _fill(work: Work, broker: Broker, topic: str, seconds: float) -> None:
    """Publish more messages than any client consumes in that time."""
    broker.make_channel(topic)
    wanted, there = _ENOUGH * (seconds + 1), 0.0
    while there < wanted:
        there += work.load("pub", broker.tcp_port, topic, 2, 200, 200, 0.5, at_most=0.5)["msgs"]


def _load(broker: Broker, client: str, mode: str, topic: str, seconds: float) -> Load:
    command = [sys.executable, "-m", f"bench.clients.{client}_load", str(broker.tcp_port), mode, topic, str(seconds)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=seconds + SLACK,
    )
    if done.returncode or not done.stdout:
        raise Failed(f"{' '.join(command[1:])}: {done.stderr.decode().strip()}")
    return parsed(done.stdout, 0)


BENCHMARK: Final = Benchmark(
    "client", "How quick is our Python client, beside the others?", add_arguments, run, at_most=30
)
