"""`python -m bench guard`: does a change make nsqd execute more instructions? Seconds cannot show 1 % on a busy machine.

    loads.py           PUB, MPUB, deliveries and FIN in one process, without sockets; runs under Valgrind
    requests.c         tells Valgrind when to count
    counting.py        runs the loads, and adds up the counts
    python_build.py    the traits of a Python on which a count depends
    figures.py         the stored figures, and the judgement
    figures.json       the stored figures of each Python, compiler and build

docs/how-to/measure.md says how to read and store them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import builds
from bench.builds import Build
from bench.guard.counting import Skipped, check_tools, count, key_of
from bench.guard.figures import Counts, Figure, Figures, Judgement, Verdict, judge, load_figures, store
from bench.work import Failed, say
from scripts.command_line import option

QUESTION: Final = "Does a change make nsqd execute more instructions than the stored figures allow?"
FIGURES: Final = Path(__file__).with_name("figures.json")


@dataclass(frozen=True, slots=True)
class Comparison:
    key: str
    judgements: list[Judgement]
    seconds: float

    @property
    def too_much(self) -> list[str]:
        return [it.finding for it in self.judgements if it.verdict is Verdict.WORSE]

    @property
    def counts(self) -> Counts:
        return {it.load: it.count for it in self.judgements}

    def print(self) -> None:
        print(f"\nInstructions for each message: {self.key}  ({self.seconds:.0f} s)")
        print(f"{'load':22}{'base':>10}{'last':>10}{'now':>10}{'of base':>10}{'of last':>10}")
        for it in self.judgements:
            figures = (it.figure.base, it.figure.last, it.count)
            print(
                f"{it.load:22}{''.join(f'{figure:10,.0f}' for figure in figures)}{it.of_base:+10.2%}{it.of_last:+10.2%}"
            )
        for it in self.judgements:
            if it.finding:
                print(it.finding)


@dataclass(frozen=True, kw_only=True)
class GuardSettings:
    build: str = option(
        builds.AUTO,
        "nsqd's core: pure Python, compiled, or both (default: both, if scripts/compile has been run on this code)",
        choices=builds.CHOICES,
    )
    store: bool = option(False, "store the counts as the last figures")
    base: bool = option(False, "with --store: as the base, too, which is a decision")
    against: Path | None = option(None, "compare with another checkout instead of the stored figures", word="FOLDER")


def run(settings: GuardSettings) -> int:
    """Compare each build that was asked for. Return the exit status: 1 if a load costs too much."""
    wanted = tuple(Build) if settings.build == builds.AUTO else (Build(settings.build),)
    status = 0
    for build in wanted:
        try:
            if settings.build == Build.COMPILED:
                builds.chosen(build)  # compiles, if need be
            comparison = compare(build, against=settings.against, stores=settings.store)
        except Skipped as skipped:
            say(f"{build}: skipped, {skipped}")
        except Failed as failure:
            say(f"guard failed: {failure}")
            return 1
        except KeyboardInterrupt:
            say("stopped")
            return 130
        else:
            comparison.print()
            if settings.store:
                store(FIGURES, comparison.key, comparison.counts, moves_base=settings.base)
                print(f"stored in {FIGURES.name}")
            elif comparison.too_much:
                status = 1
    return status


def compare(build: Build, *, against: Path | None = None, stores: bool = False) -> Comparison:
    """Count this build's instructions, and compare them with the stored figures or with another checkout.

    Raises Skipped if that cannot be done here. With `stores`, figures may be missing.
    """
    check_tools()
    if build is Build.COMPILED and not builds.is_fresh():
        raise Skipped("scripts/compile has not been run on this code")
    began = time.monotonic()
    key = key_of(build)
    figures = load_figures(FIGURES).get(key, {}) if against is None else _figures_of(build, against)
    if not figures and not stores:
        raise Skipped(f"there are no figures for {key}")
    counts = count(build)
    if stores:  # what has no figure yet is its own
        figures = {load: figures.get(load, Figure(counted, counted)) for load, counted in counts.items()}
    return Comparison(key, judge(figures, counts), time.monotonic() - began)


def _figures_of(build: Build, tree: Path) -> Figures:
    return {load: Figure(counted, counted) for load, counted in count(build, tree=tree.resolve()).items()}
