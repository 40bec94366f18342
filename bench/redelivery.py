"""Redelivery: a full window that times out, and consumers that requeue everything once."""

from __future__ import annotations

import argparse
from typing import Final

from bench.brokers import nsqd_factory
from bench.report import Benchmark, Row, at_most
from bench.work import Failed, Work, say

SIZE: Final = 200
TOPIC: Final = "bench_back"
WINDOW: Final = 2500
TIMEOUT_MS: Final = 1000  # the shortest that a client may ask for


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3, help="runs of each row (default: %(default)s)")
    parser.add_argument(
        "--messages", type=int, default=200_000, help="messages, each requeued once (default: %(default)s)"
    )


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    early, late, latest, requeued = [], [], [], []
    lost = duplicate = 0.0
    for _ in range(settings.runs):
        for first, count in (("hold", WINDOW), ("req", settings.messages)):
            with nsqd_factory(work, settings.build, settings.flag)() as broker:
                broker.make_channel(TOPIC)
                work.load("pub", broker.tcp_port, TOPIC, 2, 100, SIZE, 60, f"count={count}", "verify=1", at_most=60)
                load = work.load(
                    *("sub", broker.tcp_port, TOPIC, "ch", 1 if first == "hold" else 2, WINDOW, 60),
                    *(f"count={count}", f"verify={count}", f"first={first}", f"timeout={TIMEOUT_MS}"),
                    at_most=60,
                )
                if first == "req" and load["redelivered"] < count:
                    raise Failed(f"only {load['redelivered']:.0f} of {count} came back")
            lost, duplicate = lost + load["lost"], duplicate + load["duplicate"]
            if first == "hold":
                early.append(max(0.0, -load["early_ms"]))
                late.append(load["late_p50_ms"])
                latest.append(load["late_max_ms"])
                say(f"timed out: late by {load['late_p50_ms']:.1f} ms (p50), {load['late_max_ms']:.1f} ms (most)")
            else:
                requeued.append(load["finished_per_s"])
                say(f"requeued and finished: {load['finished_per_s']:,.0f} msg/s")
    return [
        Row(f"{WINDOW} in flight time out: too late, p50", "ms", tuple(late)),
        Row(f"{WINDOW} in flight time out: too late, most", "ms", tuple(latest)),
        # Counted from when the client read the message, which is later than when nsqd sent it.
        Row(f"{WINDOW} in flight time out: too early, most", "ms", tuple(early)),
        Row("each requeued once, then finished, 2 connections", "msg/s", tuple(requeued)),
        Row("lost, all runs", "messages", (lost,), at_most(0)),
        Row("came twice after FIN, all runs", "messages", (duplicate,), at_most(0)),
    ]


BENCHMARK: Final = Benchmark("redelivery", "How do messages come back?", add_arguments, run, at_most=10)
