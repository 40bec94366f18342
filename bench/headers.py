"""Headers on every message, five of 200 bytes in all, compared with the same bytes as a part of the body."""

from __future__ import annotations

import argparse
from typing import Final

from bench.brokers import Broker, nsqd_factory
from bench.report import Benchmark, Row, at_least
from bench.work import Failed, Work, say

SIZE: Final = 402  # bytes, of which headers take 202
TOPIC: Final = "bench_headers"
CHANNEL: Final = "ch"
PUBLISHING: Final = {  # connections, messages in a command, commands in flight
    "MPUB of 200, 2 connections": (2, 200, 1),
    "MPUB of 10, 4 connections": (4, 10, 1),
    "PUB, 50 connections": (50, 1, 1),
}
CONSUMING: Final = "consume and FIN, 2 connections"
DEMANDED: Final = {"MPUB of 200, 2 connections", CONSUMING}

Rates = dict[str, float]  # messages a second, by the row's name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    found: dict[bool, list[Rates]] = {False: [], True: []}
    for number in range(settings.runs):
        for has_headers in (number % 2 == 0, number % 2 == 1):  # who comes first alternates
            found[has_headers].append(_rates(work, settings, has_headers=has_headers))
            rates = ", ".join(f"{rate:,.0f}" for rate in found[has_headers][-1].values())
            say(f"{'headers' if has_headers else 'body':>7}: {rates} msg/s")
    return [
        Row(
            name,
            "msg/s",
            tuple(rates[name] for rates in found[True]),
            at_least(0.8) if name in DEMANDED else None,
            "as body",
            tuple(rates[name] for rates in found[False]),
        )
        for name in [*PUBLISHING, CONSUMING]
    ]


def _rates(work: Work, settings: argparse.Namespace, *, has_headers: bool) -> Rates:
    rates = {}
    for name, shape in PUBLISHING.items():
        with nsqd_factory(work, settings.build, settings.flag)() as broker:
            broker.make_channel(TOPIC, CHANNEL)
            rates[name] = _publish(work, broker, shape, settings.seconds, has_headers=has_headers)
            if CONSUMING not in rates:
                rates[CONSUMING] = _consume(work, broker, settings.seconds, has_headers=has_headers)
    return rates


def _publish(work: Work, broker: Broker, shape: tuple[int, int, int], seconds: float, *, has_headers: bool) -> float:
    connections, batch, window = shape
    more = ("headers=1",) if has_headers else ()
    load = work.load("pub", broker.tcp_port, TOPIC, connections, batch, SIZE, seconds, window, *more, at_most=seconds)
    if load["errors"]:
        raise Failed(f"{load['errors']:.0f} publishes failed")
    return load["msgs_per_s"]


def _consume(work: Work, broker: Broker, seconds: float, *, has_headers: bool) -> float:
    more = ("headers=1",) if has_headers else ()
    load = work.load("sub", broker.tcp_port, TOPIC, CHANNEL, 2, 2500, seconds, "quiet=0.5", *more, at_most=seconds)
    return load["finished_per_s"]


BENCHMARK: Final = Benchmark(
    "headers",
    "Headers on every message: what do they cost beside the same bytes as body?",
    add_arguments,
    run,
    at_most=10,
)
