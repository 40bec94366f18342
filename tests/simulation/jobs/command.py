"""`python -m tests.simulation jobs`: one library on one broker after the other, a table side by side, and a result file."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

from bench.jobs.libraries import LIBRARIES
from bench.jobs.servers import SERVERS
from bench.machine import describe_machine, describe_versions
from bench.report import replace_file
from bench.work import ROOT
from scripts.command_line import option
from tests.simulation.jobs import scenario
from tests.simulation.jobs.scenario import Outcome, Plan, Say

ABOUT: Final = "jobs with an ETA on nsqd, Redis or RabbitMQ, whose workers and broker are killed: lost, early, repeated"
RESULTS: Final = ROOT / "bench" / "results"

ROWS: Final[Mapping[str, str]] = {
    "published": "jobs published",
    "kills": "kills of workers",
    "broker_kills": "kills of the broker",
    "lost": "lost",
    "stuck": "left in the broker",
    "early": "early",
    "earliest": "earliest, s",
    "repeated": "repeated runs",
    "repeats_per_kill": "repeated runs a kill",
    "most_runs": "most runs of one job",
    "republished": "publishes tried again",
    "deaths": "workers that ended themselves",
    "late_p50": "late p50, s",
    "late_p99": "late p99, s",
    "late_most": "latest, s",
}


def _brokers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in SERVERS]:
        raise ValueError(f"unknown brokers: {', '.join(unknown)}")
    return names


def _seconds(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)):
        raise ValueError(f"{text!r} is no time such as 90s, 8m or 6h")
    return float(found[1]) * units[found[2]]


@dataclass(frozen=True, kw_only=True)
class JobsOptions:
    library: str = option("celery", "that runs the jobs", choices=tuple(LIBRARIES))
    broker: tuple[str, ...] = option(
        ("nsq",), f"one after the other, of {', '.join(SERVERS)} (default: nsq)", word="NAME,...", parse=_brokers
    )
    tasks: int = option(10_000, "jobs to publish")
    span: float = option(
        _seconds("6h"),
        "what the ETAs stand for, as 6h: brokers' timeouts are shortened as the time is (default: 6h)",
        word="TIME",
        parse=_seconds,
    )
    within: float = option(
        _seconds("24m"), "the real time that the ETAs spread over (default: 24m)", word="TIME", parse=_seconds
    )
    kills: int = option(200, "of workers")
    broker_kills: int = option(50, "of the broker")
    seed: int = option(1, "where all chance comes from")
    results: Path = option(RESULTS, "folder of the result file (default: bench/results)")


def main(arguments: JobsOptions, command: str, say: Say) -> int:
    """Return 1 if the run on nsqd has lost a job or run one early. What others do is a figure, not a failure."""
    signal.signal(signal.SIGTERM, _stop)  # so that all processes end and all folders are removed
    path = arguments.results / f"jobs-eta-{time.strftime('%Y-%m-%d')}.json"
    status = 0
    for broker in arguments.broker:
        plan = Plan(
            library=arguments.library,
            broker=broker,
            tasks=arguments.tasks,
            span=arguments.span,
            within=arguments.within,
            kills=arguments.kills,
            broker_kills=arguments.broker_kills,
            seed=arguments.seed,
        )
        say(f"{plan.library} on {broker}")
        with TemporaryDirectory(prefix="nsq-jobs-") as folder:
            outcome = scenario.run(Path(folder), plan, say)
        say(f"{plan.library} on {broker}, {outcome.seconds:.0f} s: {outcome}")
        _keep(path, plan, outcome, command)
        if broker == "nsq" and (outcome.verdict.not_run or outcome.verdict.early):
            status = 1
    say("")
    for line in table(arguments.library, _kept(path)):
        say(line)
    say(f"\nwritten to {path.name}")
    return status


def figures(outcome: Outcome) -> dict[str, Any]:
    more = ("lost", "stuck", "kills", "broker_kills", "deaths", "seconds", "repeats_per_kill")
    return {**asdict(outcome.verdict), **{name: getattr(outcome, name) for name in more}}


def table(library: str, kept: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the runs of a library side by side, nsq first."""
    runs = sorted((run for run in kept if run["library"] == library), key=lambda run: [*SERVERS].index(run["broker"]))
    lines = [[library, *(run["broker"] for run in runs)]]
    lines += [[title, *(_figure(run["figures"][name]) for run in runs)] for name, title in ROWS.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in enumerate(both))
        for both in (list(zip(line, widths, strict=True)) for line in lines)
    ]


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# The result file has one entry for each library on each broker: the last run of the day


def _kept(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["runs"]) if path.is_file() else []


def _keep(path: Path, plan: Plan, outcome: Outcome, command: str) -> None:
    run = {
        "library": plan.library,
        "broker": plan.broker,
        "command": command,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "plan": asdict(plan),
        "versions": {**describe_versions(), **_versions(plan.library), "broker": SERVERS[plan.broker].version()},
        "figures": figures(outcome),
    }
    others = [it for it in _kept(path) if (it["library"], it["broker"]) != (plan.library, plan.broker)]
    content = {"name": "jobs-eta", "question": ABOUT, "machine": describe_machine(), "runs": [*others, run]}
    replace_file(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _versions(library: str) -> dict[str, str]:
    return {name: metadata.version(name) for name in LIBRARIES[library].packages}
