"""Hostile loads, each with an honest client beside it: what does the client feel, and what does the daemon hold?

`probe.py` is the honest client, `attacker.py` the process that a load of `cases.py` runs in, `measure.py` puts both before a
fresh daemon. This file is the command.
"""

from __future__ import annotations

from typing import Final

from bench.attack.cases import CASES
from bench.attack.measure import AttackSettings, Figures, measured
from bench.certificate import Certificate
from bench.report import Benchmark, Row, at_most
from bench.runner import chosen
from bench.work import Work, say

MOST_MEMORY: Final = 300.0  # MB
LONGEST_HANDSHAKE: Final = 1000.0  # ms; clients give up after five or ten seconds


def run(settings: AttackSettings, work: Work) -> list[Row]:
    certificate = Certificate.make(work.folder)
    rows: list[Row] = []
    for name in chosen(settings.only, [*CASES]):
        figures = measured(name, settings, work, certificate)
        rows += rows_of(name, figures)
        say(f"{name:>22}: p99 {figures.p99:8.1f} ms, peak {figures.peak:5.0f} MB; {figures.told}")
    return rows


def rows_of(name: str, figures: Figures) -> list[Row]:
    case = CASES[name]
    rows = [
        Row(f"{name}: probe, p99", "ms", (figures.p99,), at_most(case.longest), note=f"{case.title}; {figures.told}"),
        Row(f"{name}: peak resident", "MB", (figures.peak,), at_most(MOST_MEMORY)),
    ]
    if case.wants_tls:
        rows.append(Row(f"{name}: honest handshakes, p99", "ms", (figures.handshakes,), at_most(LONGEST_HANDSHAKE)))
    return rows


BENCHMARK: Final = Benchmark(
    "attack", "What does an honest client feel beside a hostile one?", AttackSettings, run, at_most=20
)
