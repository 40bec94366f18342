"""Messages a second, compared with the least that a Python broker can do on the same machine in the same minute."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from bench.brokers import Factory, external_factory, nsqd_factory, yardstick_factory
from bench.builds import check_core
from bench.report import Benchmark, Demand, Row, at_least
from bench.runner import Compared, Measured, chosen
from bench.work import ROOT, Work, say
from bench.workloads import WORKLOADS, measure, together

DEMANDS: Final = {
    **dict.fromkeys(("mpub", "pub2", "pub50", "mpub10"), at_least(0.85)),
    **dict.fromkeys(("sub", "sub10k", "rdy1"), at_least(0.7)),
    "deep": at_least(0.8),
    "http": at_least(0.5),
}
NAMES: Final = tuple(name for name in WORKLOADS if name in DEMANDS)
HTTP: Final = "http"
OVER_TCP: Final = "pub16"  # the same over TCP, and in the same process
UNCHANGED: Final = at_least(0.98)  # against another checkout or environment: a change may cost 2 %
MINE: Final = "measured"


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
    wanted = chosen(settings.only, NAMES)
    flags = [f"--ack={settings.ack}", *settings.flag]
    mine = (
        external_factory(settings.broker, settings.http_port)
        if settings.broker
        else nsqd_factory(work, settings.build, flags, settings.installed)
    )
    other_name, other = _other(work, settings, flags)
    is_checkout = isinstance(settings.against, Path)
    rows: list[Row] = []
    for group in together([name for name in wanted if name != HTTP or is_checkout]):
        sides = {name: _side(work, factory, group, settings) for name, factory in ((MINE, mine), (other_name, other))}
        compared = Compared(sides, settings.runs)
        rows += [_row(compared, name, other_name, is_checkout=is_checkout) for name in group if name in wanted]
    if HTTP in wanted and not is_checkout:
        if settings.broker and not settings.http_port:
            say("http: left out, as it needs --http-port")
        else:
            rows.append(_over_http(work, mine, settings))
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


def _row(compared: Compared, name: str, other: str, *, is_checkout: bool) -> Row:
    demand: Demand = UNCHANGED if is_checkout else DEMANDS[name]
    return compared.row(name, WORKLOADS[name].text, MINE, other, demand=demand)


def _side(
    work: Work, factory: Factory, names: Sequence[str], settings: argparse.Namespace
) -> Callable[[int], Mapping[str, Measured]]:
    return partial(_measure, work, factory, names, settings.seconds)


def _measure(work: Work, factory: Factory, names: Sequence[str], seconds: float, number: int) -> dict[str, Measured]:
    """Measure on a new topic each time, because a broker that we cannot restart keeps what it has."""
    topic = f"bench_{os.getpid()}_{number}_{names[0]}"
    with factory() as broker:
        measured = measure(work, broker, names, topic, seconds)
        broker.forget(topic)
    return measured


def _over_http(work: Work, mine: Factory, settings: argparse.Namespace) -> Row:
    """Compare publishing over HTTP with TCP in the same process; each is first in turn."""

    def both(number: int) -> dict[str, Measured]:
        names = (HTTP, OVER_TCP) if number % 2 == 0 else (OVER_TCP, HTTP)
        return _measure(work, mine, names, settings.seconds, number)

    compared = Compared({MINE: both}, settings.runs)
    row = compared.row(HTTP, WORKLOADS[HTTP].text, MINE, demand=DEMANDS[HTTP])
    return row.beside("TCP PUB on 16", compared.values(MINE, OVER_TCP))


BENCHMARK: Final = Benchmark("throughput", "How many messages a second?", add_arguments, run, at_most=30)
