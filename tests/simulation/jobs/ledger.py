"""What was published and what ran, read from the files that the processes of a run have left, and what is wrong in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.jobs.publish_etas import WARMING_UP

GRANULARITY: Final = 0.001  # seconds of a clock: a job that runs so little before it is due is not early


@dataclass(frozen=True, slots=True)
class Published:
    due: float
    confirmed: float
    tries: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the jobs whose publish was confirmed."""

    published: int
    not_run: int
    early: int
    earliest: float  # seconds before its ETA
    repeated: int  # times that a job ran again
    repeated_jobs: int
    most_runs: int  # of one job
    republished: int  # jobs whose publish failed at first: the library does not know whether the broker has them
    late_p50: float
    late_p99: float
    late_most: float


def published(folder: Path) -> dict[int, Published]:
    """Return the confirmed jobs by their number."""
    return {
        int(number): Published(float(due), float(confirmed), int(tries))
        for number, due, confirmed, tries in _lines(folder / "published", 4)
    }


def runs(folder: Path) -> dict[int, list[float]]:
    """Return when each job ran, the first run first."""
    found: dict[int, list[float]] = {}
    for path in folder.glob("ran-*"):
        for number, _, ran in _lines(path, 3):
            if int(number) < WARMING_UP:
                found.setdefault(int(number), []).append(float(ran))
    for times in found.values():
        times.sort()
    return found


def judge(jobs: dict[int, Published], ran: dict[int, list[float]]) -> Verdict:
    firsts = {number: ran[number][0] for number in jobs if number in ran}
    earliness = [jobs[number].due - first for number, first in firsts.items()]
    # A publish that had to wait for the broker may be over only when its job is due already.
    lateness = sorted(
        max(0.0, first - max(jobs[number].due, jobs[number].confirmed)) for number, first in firsts.items()
    )
    counts = Counter({number: len(ran[number]) for number in firsts})
    return Verdict(
        published=len(jobs),
        not_run=len(jobs) - len(firsts),
        early=sum(seconds > GRANULARITY for seconds in earliness),
        earliest=max([0.0, *earliness]),
        repeated=counts.total() - len(firsts),
        repeated_jobs=sum(count > 1 for count in counts.values()),
        most_runs=max(counts.values(), default=0),
        republished=sum(job.tries > 1 for job in jobs.values()),
        late_p50=_at(lateness, 0.5),
        late_p99=_at(lateness, 0.99),
        late_most=_at(lateness, 1.0),
    )


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def _lines(path: Path, fields: int) -> Iterator[list[str]]:
    """Return the complete lines of a file that may still grow."""
    if path.is_file():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n") and len(words := line.split()) == fields:
                yield words
