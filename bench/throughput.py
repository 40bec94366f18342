"""Messages a second, compared with the least that a Python broker can do on the same machine in the same minute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.brokers import Factory, external_factory, nsqd_factory, yardstick_factory
from bench.builds import check_core
from bench.report import Benchmark, Demand, Row, at_least
from bench.runner import Compared, Measured, chosen
from bench.settings import Settings
from bench.work import ROOT, Work, say
from bench.workloads import WORKLOADS, measure, together
from scripts.command_line import option

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


def _folder(text: str) -> Path:
    return Path(text).resolve()


def _port_or_folder(text: str) -> int | Path:
    return int(text) if text.isdigit() else _folder(text)


@dataclass(kw_only=True)
class ThroughputSettings(Settings):
    runs: int = option(5, "runs of each row")
    seconds: float = option(2.0, "length of one run")
    ack: str = option("written", "nsqd's --ack", choices=("memory", "written", "synced"))
    only: str = option("", f"some of: {', '.join(NAMES)}", word="ROW,...")
    broker: int | None = option(None, "measure what listens here instead of a fresh nsqd", word="PORT")
    http_port: int | None = option(None, "HTTP port of --broker, for the http row", word="PORT")
    installed: Path = option(
        ROOT,
        "measure the nsqd of this environment, in which wheels are installed, instead of this checkout's",
        word="FOLDER",
        parse=_folder,
    )
    against: int | Path | None = option(
        None,
        "compare with what listens here, or with the same build of another checkout or environment, not with the "
        "yardstick",
        word="PORT|FOLDER",
        parse=_port_or_folder,
    )


def run(settings: ThroughputSettings, work: Work) -> list[Row]:
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


def _other(work: Work, settings: ThroughputSettings, flags: list[str]) -> tuple[str, Factory]:
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
    work: Work, factory: Factory, names: Sequence[str], settings: ThroughputSettings
) -> Callable[[int], Mapping[str, Measured]]:
    return partial(_measure, work, factory, names, settings.seconds)


def _measure(work: Work, factory: Factory, names: Sequence[str], seconds: float, number: int) -> dict[str, Measured]:
    """Measure on a new topic each time, because a broker that we cannot restart keeps what it has."""
    topic = f"bench_{os.getpid()}_{number}_{names[0]}"
    with factory() as broker:
        measured = measure(work, broker, names, topic, seconds)
        broker.forget(topic)
    return measured


def _over_http(work: Work, mine: Factory, settings: ThroughputSettings) -> Row:
    """Compare publishing over HTTP with TCP in the same process; each is first in turn."""

    def both(number: int) -> dict[str, Measured]:
        names = (HTTP, OVER_TCP) if number % 2 == 0 else (OVER_TCP, HTTP)
        return _measure(work, mine, names, settings.seconds, number)

    compared = Compared({MINE: both}, settings.runs)
    row = compared.row(HTTP, WORKLOADS[HTTP].text, MINE, demand=DEMANDS[HTTP])
    return row.beside("TCP PUB on 16", compared.values(MINE, OVER_TCP))


BENCHMARK: Final = Benchmark("throughput", "How many messages a second?", ThroughputSettings, run, at_most=30)
