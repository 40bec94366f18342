"""Other brokers beside ours: the same work in C load generators, on NSQ's protocol and on theirs, in one run.

Kafka does the same work with its own client, and has a table of its own: that client is most of what one measures.
So has the physical limit of publishing, which isn't a broker: it shows how far ours are from it.

Each round measures every broker in turn, as a fresh process on an empty folder, and begins with another one. Ratios are
taken round by round, so that a machine that slows down or speeds up favours nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.builds import Build
from bench.peers import backlog, draw, kills
from bench.peers.loader import Loader, NotReady
from bench.peers.loads import (
    CLIENT_TIMES,
    FIGURES,
    KILL,
    LATENCIES,
    LOADS,
    PACES,
    PUBLISHING,
    RATES,
    Figure,
    measure_one,
)
from bench.peers.result import Result
from bench.peers.rows import Measurements, Missing, Values, rows_of
from bench.peers.tables import page
from bench.peers.variants import GO, LIMIT, REFERENCES, Promise, Variant, variants
from bench.report import Benchmark, Report, Row, write_result
from bench.servers import Server
from bench.settings import Settings
from bench.work import ROOT, Failed, Work, say
from scripts.command_line import option

QUICK_PEERS: Final = (REFERENCES[Promise.WRITTEN], "redis-everysec", "beanstalkd", LIMIT)
_QUICK: Final = {"rounds": 1, "seconds": 0.3, "messages": 20_000, "rest": 0.2}
_FULL: Final = {"rounds": 3, "seconds": 1.0, "messages": 3_000_000, "rest": 2.0}
_USUAL: Final = -1  # the number of _QUICK or _FULL
_FILL_LIMIT: Final = 90.0  # seconds


@dataclass(kw_only=True)
class PeersSettings(Settings):
    peers: str = option("", f"some of: {', '.join(variant.name for variant in variants())}", word="NAME,...")
    loads: str = option("", f"some of: {', '.join(LOADS)}", word="LOAD,...")
    rounds: int = option(_USUAL, f"rounds of rates and latency (default: {_FULL['rounds']})")
    seconds: float = option(_USUAL, f"length of one load (default: {_FULL['seconds']:g})")
    messages: int = option(_USUAL, f"messages of the backlog (default: {_FULL['messages']})")
    rest: float = option(
        _USUAL,
        f"seconds with a backlog before memory is looked at, and of a queue before a kill (default: {_FULL['rest']:g})",
    )
    go_nsqd: str = option(
        "", "the program of Go's nsqd, to be measured as well (default: that in the folder NSQ_ORIGINAL)", word="FILE"
    )
    quick: bool = option(False, f"small and short, and only {', '.join(QUICK_PEERS)}, and Go's nsqd if named")
    json: Path | None = option(None, "the result file (default: in --results)", word="FILE")
    draw: Path | None = option(None, "measure nothing; draw this into the documents", word="RESULT")


def run(settings: PeersSettings, work: Work) -> list[Row]:
    for name, value in (_QUICK if settings.quick else _FULL).items():
        if getattr(settings, name) == _USUAL:
            setattr(settings, name, value)
    loads = tuple(_chosen(settings.loads, LOADS, LOADS))
    wanted = _wanted(settings)
    missing = [Missing(variant.name, "", why) for variant in wanted if (why := _lacks(variant, settings.build))]
    for why in dict.fromkeys(it.why for it in missing):
        say(f"{', '.join(it.peer for it in missing if it.why == why)}: left out: {why}")
    measured = [variant for variant in wanted if variant.name not in {it.peer for it in missing}]
    if not measured:
        raise Failed("none of these brokers is here")
    return _Run(settings, work, loads, measured, missing).measurements()


def _wanted(settings: PeersSettings) -> list[Variant]:
    go_nsqd = settings.go_nsqd or _original()
    known = {variant.name: variant for variant in variants(settings.flag, go_nsqd)}
    quick = [name for name in known if name in QUICK_PEERS or (go_nsqd and name.startswith(GO))]
    names = _chosen(settings.peers, tuple(known), quick if settings.quick else tuple(known))
    return [known[name] for name in names]


def _original() -> str:
    """Return the program in the folder that names NSQ's own to tests/original, too. Empty: no folder is named."""
    folder = os.environ.get("NSQ_ORIGINAL", "")
    return str(Path(folder) / "nsqd") if folder else ""


def _chosen(given: str, known: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Return the names that were given, in the order of the known ones."""
    if not given:
        return list(usual)
    names = given.split(",")
    if unknown := set(names) - set(known):
        raise Failed(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return [name for name in known if name in names]


def _lacks(variant: Variant, build: Build) -> str:
    if variant.name.startswith("nsqd-compiled") and build is not Build.COMPILED:
        return "scripts/compile has not been run on this code"
    return variant.kind.lacks()


class _Run:
    def __init__(
        self,
        settings: PeersSettings,
        work: Work,
        loads: tuple[str, ...],
        measured: Sequence[Variant],
        missing: list[Missing],
    ) -> None:
        self._settings = settings
        self._work = work
        self._loads = loads
        self._measured = measured
        self._missing = missing
        self._loader = Loader.compiled(work.folder)
        self._values: Values = {}
        self._notes: dict[tuple[str, str], str] = {}

    def measurements(self) -> Measurements:
        with_rates = [it for it in self._measured if any(load in (*PACES, *PUBLISHING) for load in self._loads_of(it))]
        for number in range(self._settings.rounds):
            for variant in in_turn(with_rates, number):
                say(f"round {number + 1} of {self._settings.rounds}: {variant.label}")
                self._try(variant, "rates", partial(self._measure_rates, variant, number))
        for variant in self._measured:
            if "backlog" in self._loads_of(variant) and variant.has_backlog:
                say(f"backlog: {variant.label}")
                self._try(variant, "backlog", partial(self._measure_backlog, variant))
            if "kill" in self._loads_of(variant):
                say(f"kill -9: {variant.label}")
                self._try(variant, "kill", partial(self._measure_kill, variant))
        self._note_lacking_rounds()
        rows = rows_of(self._values, self._notes, self._measured, self._missing)
        return Measurements(rows, self._measured, self._missing, self._settings.messages)

    def _loads_of(self, variant: Variant) -> tuple[str, ...]:
        return tuple(load for load in self._loads if load in variant.loads)

    def _try(self, variant: Variant, part: str, measure: Callable[[], None]) -> None:
        """Measure. What fails with another broker is said in the result, and does not end a run of many minutes."""
        try:
            measure()
        except Failed as failure:
            if variant.name in REFERENCES.values():
                raise
            say(f"{variant.label}: {part} failed: {failure}")
            self._missing.append(Missing(variant.name, part, str(failure).partition("\n")[0]))

    def _start(self, variant: Variant, stack: ExitStack) -> Server:
        folder = stack.enter_context(self._work.new_folder(variant.name))
        return stack.enter_context(variant.make(folder))

    def _measure_rates(self, variant: Variant, number: int) -> None:
        figures, missing = measure_one(
            self._loader,
            partial(self._start, variant),
            f"peers_{number}_{self._work.folder.name[-8:]}",
            self._loads_of(variant),
            self._settings.seconds,
        )
        self._note_all(variant, figures, missing)

    def _measure_backlog(self, variant: Variant) -> None:
        wanted = self._settings.messages
        with ExitStack() as stack:
            server = self._start(variant, stack)
            held = backlog.measure(self._loader, server, "peers_backlog", wanted, self._settings.rest, _FILL_LIMIT)
        self._note_all(variant, *held.figures(wanted, _FILL_LIMIT))

    def _measure_kill(self, variant: Variant) -> None:
        with ExitStack() as stack:
            server = self._start(variant, stack)
            acked = self._work.folder / f"acked-{variant.name}"
            try:
                killed = kills.measure(
                    self._loader, server, "peers_kill", self._settings.rest, self._settings.seconds, acked
                )
            except NotReady:
                self._give_up(KILL[0].name, variant, "the queue did not come back within a minute")
                return
        lost = 100 * killed.missing / killed.acknowledged
        self._note_value(KILL[0].name, variant, lost, f"{killed.missing:,} of {killed.acknowledged:,}")

    def _note_lacking_rounds(self) -> None:
        for (name, peer), values in self._values.items():
            if name in {figure.name for figure in (*RATES, *LATENCIES)} and len(values) < self._settings.rounds:
                self._notes[name, peer] = f"{len(values)} of {self._settings.rounds} rounds"

    def _note_all(self, variant: Variant, figures: Mapping[str, float], missing: Mapping[str, str]) -> None:
        for name, value in figures.items():
            self._note_value(name, variant, value)
        for name, why in missing.items():
            self._give_up(name, variant, why)

    def _note_value(self, name: str, variant: Variant, value: float, note: str = "") -> None:
        figure = _figure_named(name)
        say(f"  {variant.label:24} {figure.text}: {value:,.1f} {figure.unit} {note}".rstrip())
        self._values.setdefault((name, variant.name), []).append(value)
        if note:
            self._notes[name, variant.name] = note

    def _give_up(self, name: str, variant: Variant, why: str) -> None:
        """Leave a figure out, in all rounds."""
        say(f"  {variant.label:24} {_figure_named(name).text}: {why}")
        if not any(it.peer == variant.name and it.load == name for it in self._missing):
            self._missing.append(Missing(variant.name, name, why))


def in_turn(measured: Sequence[Variant], number: int) -> Iterator[Variant]:
    """Yield all, forwards and backwards in turn, and each time beginning with another one."""
    first = number * len(measured) // 3 % len(measured)
    order = [*measured[first:], *measured[:first]]
    yield from order if number % 2 == 0 else reversed(order)


def _figure_named(name: str) -> Figure:
    return next(figure for figure in (*FIGURES, *CLIENT_TIMES.values()) if figure.name == name)


def publish(report: Report, settings: PeersSettings) -> None:
    """Write the result file, and print the tables that it makes."""
    assert isinstance(report.rows, Measurements)
    path = write_result(report, settings.results, settings.json, report.rows.described())
    print(f"\n{page(Result.read(path))}")


def draw_if_asked(settings: PeersSettings) -> bool:
    if settings.draw is None:
        return False
    draw.draw(Result.read(settings.draw), ROOT)
    return True


BENCHMARK: Final = Benchmark(
    "peers",
    "What do other brokers do with the same work?",
    PeersSettings,
    run,
    at_most=60,
    publish=publish,
    instead=draw_if_asked,
)
