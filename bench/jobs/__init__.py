"""Job queues on nsqd and on Redis: jobs a second, and the memory of a worker while many jobs wait for their ETA.

Django's tasks are compared with those of django-tasks-db, whose queue is a table. Both sides have the same app, the same
worker settings (but db_worker runs one task at a time, as it knows nothing else) and a broker that keeps what it has
confirmed (servers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.jobs import memory
from bench.jobs.libraries import RATED
from bench.jobs.postgres import Postgres
from bench.jobs.rates import MEASURED, Rate, Rates, measure
from bench.report import Benchmark, Row, at_least, at_most
from bench.runner import in_turns
from bench.settings import Settings
from bench.work import Work, say
from scripts.command_line import option

OURS: Final = "nsq"
OTHER: Final = "redis"


def _libraries(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in RATED]:
        raise ValueError(f"unknown libraries: {', '.join(unknown)}")
    return names


@dataclass(kw_only=True)
class JobsSettings(Settings):
    library: tuple[str, ...] = option(
        tuple(RATED), f"some of: {', '.join(RATED)} (default: all)", word="NAME,...", parse=_libraries
    )
    runs: int = option(5, "runs on each broker")
    jobs: int = option(5_000, "jobs of a run")
    waiting: int = option(
        1_000_000, "Celery jobs that wait for their ETA while a worker's memory is measured; 0: leave that out"
    )
    most_memory: float = option(4_000, "megabytes at which a worker that grows is stopped")


def run(settings: JobsSettings, work: Work) -> list[Row]:
    libraries = [library for library in settings.library if _can_run(library)] if settings.runs else []
    rows = [row for library in libraries for row in _rates(settings, work, library)]
    return [*rows, *(_memory(settings, work) if settings.waiting and "celery" in settings.library else ())]


def _can_run(library: str) -> bool:
    """Return whether a library's database, if it needs one, is there. The others' brokers are demanded."""
    if RATED[library].needs_database and (why := Postgres.lacks()):
        say(f"{library} is left out: {why}")
        return False
    return True


def _rates(settings: JobsSettings, work: Work, library: str) -> list[Row]:
    other = RATED[library].other
    found: dict[str, list[Rates]] = {OURS: [], other: []}
    for _, broker in in_turns((OURS, other), settings.runs):
        found[broker].append(measure(work, library, broker, settings.jobs, settings.build.python()))
        rates = ", ".join(f"{what} {rate.jobs_per_s:,.0f}" for what, rate in found[broker][-1].items())
        say(f"{library:>8} on {broker:>8}: {rates} jobs/s")
    return [
        Row(
            f"{library}, {what}",
            "jobs/s",
            tuple(rates[what].jobs_per_s for rates in found[OURS]),
            at_least(1.0),
            other,
            tuple(rates[what].jobs_per_s for rates in found[other]),
            _note([rates[what] for rates in found[OURS]], [rates[what] for rates in found[other]]),
        )
        for what in MEASURED
    ]


def _note(ours: Sequence[Rate], other: Sequence[Rate]) -> str:
    """Return the processor time of a job on both sides. It hardly changes on a busy machine."""
    sides = [{who: median(rate.processor[who] for rate in side) for who in side[0].processor} for side in (ours, other)]
    return "processor " + "; ".join(f"{who} {sides[0][who]:,.0f} µs, {sides[1][who]:,.0f} µs" for who in sides[0])


def _memory(settings: JobsSettings, work: Work) -> list[Row]:
    ours, other = (
        memory.measure(work, broker, settings.waiting, settings.most_memory, settings.build.python())
        for broker in (OURS, OTHER)
    )
    waiting = f"{settings.waiting:,} jobs waiting"
    return [
        Row(f"worker of Celery, {waiting}", "MB", (ours.full,), at_most(1.1), "none waiting", (ours.empty,)),
        Row(f"the same on {OTHER}", "MB", (other.full,), None, "none waiting", (other.empty,), other.note),
        Row(f"nsqd, {waiting}", "MB", (ours.broker,), None, OTHER, (other.broker,)),
    ]


BENCHMARK: Final = Benchmark(
    "jobs", "How quick are job queues on nsqd, beside the same on Redis or in Postgres?", JobsSettings, run, at_most=60
)
