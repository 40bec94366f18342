"""Messages a second, compared with the least that a Python broker can do on the same machine in the same minute."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import median
from typing import Final

from bench.brokers import Broker, Factory, external_factory, nsqd_factory, yardstick_factory
from bench.builds import check_core
from bench.report import Benchmark, Demand, Row, at_least
from bench.work import ROOT, Failed, Work, say

SIZE: Final = 200
LARGE_SIZE: Final = 10 * 1024
LARGE_BACKLOG: Final = 50_000  # messages for each second of a run
BACKLOG: Final = 100_000


@dataclass(frozen=True)
class Measured:
    rate: float  # messages a second
    cost: float  # processor time of the broker for one message, in microseconds; nan if unknown


Measure = Callable[[Work, Broker, str, float], dict[str, Measured]]  # by the row's name


@dataclass(frozen=True)
class Group:
    """The rows that one run of one process yields."""

    rows: Mapping[str, tuple[str, Demand]]
    measure: Measure


def _batches(work: Work, broker: Broker, topic: str, seconds: float) -> dict[str, Measured]:
    _make_channel(work, broker, topic)
    publish = _load(work, broker, "pub", topic, 2, 200, SIZE, seconds, seconds=seconds)
    consume = _load(work, broker, "sub", topic, "ch", 2, 2500, seconds, "quiet=0.5", seconds=seconds)
    return {"mpub": publish, "sub": consume}


def _singles(name: str, connections: int, window: int) -> Measure:
    def measure(work: Work, broker: Broker, topic: str, seconds: float) -> dict[str, Measured]:
        _make_channel(work, broker, topic)
        return {name: _load(work, broker, "pub", topic, connections, 1, SIZE, seconds, window, seconds=seconds)}

    return measure


def _small_batches(work: Work, broker: Broker, topic: str, seconds: float) -> dict[str, Measured]:
    _make_channel(work, broker, topic)
    return {"mpub10": _load(work, broker, "pub", topic, 16, 10, SIZE, seconds, seconds=seconds)}


def _large_bodies(work: Work, broker: Broker, topic: str, seconds: float) -> dict[str, Measured]:
    _publish(work, broker, topic, batch=10, size=LARGE_SIZE, count=int(LARGE_BACKLOG * seconds))
    return {"sub10k": _load(work, broker, "sub", topic, "ch", 2, 200, seconds, "quiet=0.5", seconds=seconds)}


def _one_in_flight(work: Work, broker: Broker, topic: str, seconds: float) -> dict[str, Measured]:
    _publish(work, broker, topic, batch=200, size=SIZE, count=int(BACKLOG * seconds))
    return {"rdy1": _load(work, broker, "sub", topic, "ch", 10, 1, seconds, "quiet=0.5", seconds=seconds)}


def _publish(work: Work, broker: Broker, topic: str, *, batch: int, size: int, count: int) -> None:
    """Publish a backlog, which is not measured."""
    _make_channel(work, broker, topic)
    work.load("pub", broker.tcp_port, topic, 2, batch, size, 120, f"count={count}", at_most=120)


def _load(work: Work, broker: Broker, mode: str, *arguments: object, seconds: float) -> Measured:
    before = broker.processor_seconds()
    load = work.load(mode, broker.tcp_port, *arguments, at_most=seconds)
    used = broker.processor_seconds() - before
    return Measured(load["finished_per_s" if mode == "sub" else "msgs_per_s"], used * 1e6 / max(1.0, load["msgs"]))


def _make_channel(work: Work, broker: Broker, topic: str) -> None:
    """Make a channel over TCP, as the yardstick has no HTTP."""
    work.load("sub", broker.tcp_port, topic, "ch", 1, 1, 0.1, at_most=1)


GROUPS: Final = (
    Group(
        {
            "mpub": ("MPUB of 200, 2 connections", at_least(0.85)),
            "sub": ("consume and FIN, 2 connections", at_least(0.7)),
        },
        _batches,
    ),
    Group({"pub2": ("PUB one at a time, 2 connections", at_least(0.85))}, _singles("pub2", 2, 1)),
    Group({"pub50": ("PUB one at a time, 50 connections", at_least(0.85))}, _singles("pub50", 50, 1)),
    Group({"mpub10": ("MPUB of 10, 16 connections", at_least(0.85))}, _small_batches),
    Group({"sub10k": ("consume and FIN 10 KiB, 2 connections", at_least(0.7))}, _large_bodies),
    Group({"rdy1": ("consume with RDY 1, 10 connections", at_least(0.7))}, _one_in_flight),
    Group({"deep": ("PUB 64 in flight, 4 connections", at_least(0.8))}, _singles("deep", 4, 64)),
)
HTTP: Final = "http"
UNCHANGED: Final = at_least(0.98)  # against another checkout or environment: a change may cost 2 %
HTTP_ROW: Final = ("POST /pub, 16 connections", at_least(0.5))
NAMES: Final = (*(name for group in GROUPS for name in group.rows), HTTP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one run (default: %(default)s)")
    parser.add_argument("--ack", choices=("memory", "written", "synced"), default="written", help="nsqd's --ack")
    parser.add_argument("--only", default="", metavar="ROW,...", help=f"some of: {', '.join(NAMES)}")
    parser.add_argument("--broker", type=int, metavar="PORT", help="measure what listens here instead of a fresh nsqd")
    parser.add_argument("--http-port", type=int, metavar="PORT", help="HTTP port of --broker, for the http row")
    parser.add_argument(
        "--installed",
        type=_folder,
        default=ROOT,
        metavar="FOLDER",
        help="measure the nsqd of this environment, in which wheels are installed, instead of this checkout's",
    )
    parser.add_argument(
        "--against",
        type=_port_or_folder,
        metavar="PORT|FOLDER",
        help="compare with what listens here, or with the same build of another checkout or environment, not with the "
        "yardstick",
    )


def _folder(text: str) -> Path:
    return Path(text).resolve()


def _port_or_folder(text: str) -> int | Path:
    return int(text) if text.isdigit() else _folder(text)


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    wanted = settings.only.split(",") if settings.only else list(NAMES)
    if unknown := set(wanted) - set(NAMES):
        raise Failed(f"unknown rows: {', '.join(sorted(unknown))}")
    flags = [f"--ack={settings.ack}", *settings.flag]
    mine = (
        external_factory(settings.broker, settings.http_port)
        if settings.broker
        else nsqd_factory(work, settings.build, flags, settings.installed)
    )
    other_name, other = _other(work, settings, flags)
    rows: list[Row] = []
    for group in GROUPS:
        if set(group.rows) & set(wanted):
            rows += [row for name, row in _compare(group, work, mine, other, other_name, settings) if name in wanted]
    if HTTP in wanted and isinstance(settings.against, Path):
        rows.append(_http_row_against(work, mine, other, other_name, settings))
    elif HTTP in wanted:
        if settings.broker and not settings.http_port:
            say("http: left out, as it needs --http-port")
        else:
            rows.append(_http_row(work, mine, settings))
    return rows


def _other(work: Work, settings: argparse.Namespace, flags: list[str]) -> tuple[str, Factory]:
    """Return the name of the side to compare with, and how to start it."""
    match settings.against:
        case Path() as tree:
            check_core(settings.build, tree)
            return tree.name, nsqd_factory(work, settings.build, flags, tree)
        case int() as port:
            return f"port {port}", external_factory(port)
        case _:
            return "yardstick", yardstick_factory(work)


def _compare(
    group: Group, work: Work, mine: Factory, other: Factory, other_name: str, settings: argparse.Namespace
) -> list[tuple[str, Row]]:
    unchanged = isinstance(settings.against, Path)
    figures: dict[bool, dict[str, list[Measured]]] = {True: {}, False: {}}
    for number in range(settings.runs):
        # Each side is first in turn, so that a machine that speeds up or slows down favours neither.
        for is_mine in (True, False) if number % 2 == 0 else (False, True):
            with (mine if is_mine else other)() as broker:
                measured = group.measure(work, broker, _topic(number), settings.seconds)
                broker.forget(_topic(number))
            for name, one in measured.items():
                figures[is_mine].setdefault(name, []).append(one)
                say(f"{'measured' if is_mine else other_name:>10} {name:6} {one.rate:12,.0f}  {one.cost:6.2f} µs each")
    return [
        (name, _row(text, UNCHANGED if unchanged else demand, figures[True][name], other_name, figures[False][name]))
        for name, (text, demand) in group.rows.items()
    ]


def _row(text: str, demand: Demand, mine: list[Measured], other_name: str, other: list[Measured]) -> Row:
    costs = [median(one.cost for one in side) for side in (mine, other)]
    note = "" if any(map(isnan, costs)) else f"processor {costs[0]:.2f} µs, {costs[1]:.2f} µs a message"
    return Row(
        text, "msg/s", tuple(one.rate for one in mine), demand, other_name, tuple(one.rate for one in other), note
    )


def _http_row(work: Work, mine: Factory, settings: argparse.Namespace) -> Row:
    """Return the row of publishing over HTTP compared with TCP, in the same process."""
    over_http: list[float] = []
    over_tcp: list[float] = []
    for number in range(settings.runs):
        with mine() as broker:
            assert broker.http_port is not None
            pair = [("http", broker.http_port, over_http), ("pub", broker.tcp_port, over_tcp)]
            for mode, port, values in pair if number % 2 == 0 else reversed(pair):
                topic = f"{_topic(number)}_{mode}"
                load = work.load(mode, port, topic, 16, 1, SIZE, settings.seconds, at_most=settings.seconds)
                values.append(load["msgs_per_s"])
                broker.forget(topic)
                say(f"{mode + ' on 16':>17} {load['msgs_per_s']:12,.0f}")
    text, demand = HTTP_ROW
    return Row(text, "msg/s", tuple(over_http), demand, "TCP PUB on 16", tuple(over_tcp))


def _http_row_against(work: Work, mine: Factory, other: Factory, other_name: str, settings: argparse.Namespace) -> Row:
    group = Group({HTTP: (HTTP_ROW[0], UNCHANGED)}, _over_http)
    return _compare(group, work, mine, other, other_name, settings)[0][1]


def _over_http(work: Work, broker: Broker, topic: str, seconds: float) -> dict[str, Measured]:
    assert broker.http_port is not None
    before = broker.processor_seconds()
    load = work.load("http", broker.http_port, topic, 16, 1, SIZE, seconds, at_most=seconds)
    used = broker.processor_seconds() - before
    return {HTTP: Measured(load["msgs_per_s"], used * 1e6 / max(1.0, load["msgs"]))}


def _topic(number: int) -> str:
    """Return a new topic for each run, because a broker that we cannot restart keeps what it has."""
    return f"bench_{os.getpid()}_{number}"


BENCHMARK: Final = Benchmark("throughput", "How many messages a second?", add_arguments, run, at_most=30)
