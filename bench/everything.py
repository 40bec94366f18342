"""All benchmarks one after the other, and one page that shows them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import describe_machine, describe_versions
from bench.report import Benchmark, Report, SettingsT, markdown_table, replace_file
from bench.settings import Settings
from scripts.command_line import option, read_options

QUESTION: Final = "all of them, and a summary in Markdown"

# Settings of --quick: enough to see that everything works, not enough for a claim.
QUICK: Final[Mapping[str, tuple[str, ...]]] = {
    "throughput": ("--runs=1", "--seconds=0.5"),
    "latency": ("--runs=1", "--seconds=1"),
    "fanout": ("--runs=1", "--messages=100000"),
    "memory": (
        *("--messages=200000", "--deferred=20000", "--buried=5000", "--starts=1"),
        *("--connections=500", "--topics=100", "--idle=2"),
    ),
    "cancel": ("--messages=20000", "--cancels=200"),
    "drain": ("--runs=1", "--millions=0.2"),
    "recovery": ("--runs=1", "--gigabytes=0.1", "--topics=5", "--singles=1", "--single-records=10000"),
    "keys": ("--runs=1", "--seconds=0.3", "--messages=20000"),
    "headers": ("--runs=1", "--seconds=0.3"),
    "remote": ("--runs=1", "--seconds=0.5", "--idle=5", "--away=5"),
    "history": ("--runs=1", "--gigabytes=0.1"),
    "http_consume": ("--runs=1", "--messages=20000"),
    "jobs": ("--runs=1", "--jobs=3000", "--waiting=2000"),
    "streams": ("--runs=1", "--seconds=0.3"),
    "spark": (
        *("--sizes=200", "--runs=1", "--count=50000", "--rates=1000", "--seconds=6"),
        *("--landing-rate=10000", "--minute=6", "--tries=1", "--try-seconds=4", "--kills=1"),
    ),
    "landing": ("--runs=1", "--count=50000"),
    "backlog": ("--count=200000",),
    "client": ("--runs=1", "--seconds=0.3"),
    "peers": ("--quick",),
    "groups": ("--runs=1", "--messages=40000", "--held=50000"),
    "noisy": ("--runs=1", "--seconds=2", "--waiting=20000"),
    "workers": ("--runs=1", "--seconds=0.5", "--kills=1"),
    "admin": ("--nodes=1", "--topics=50", "--seconds=2"),
    "turns": ("--messages=5000", "--topics=200", "--channels=50", "--only=GET|fill|policy"),
    "attack": ("--only=nothing,slow-headers,half-mpub,nops", "--seconds=1"),
}


@dataclass(kw_only=True)
class AllSettings(Settings):
    quick: bool = option(False, "small and short: does everything work?")
    skip: tuple[str, ...] = option((), "leave out", word="NAME,...", parse=lambda names: tuple(names.split(",")))


def settings_of(benchmark: Benchmark[SettingsT], given: AllSettings) -> SettingsT:
    """Return the benchmark's own defaults, with the settings that were given to `all`."""
    arguments = QUICK[benchmark.name] if given.quick else ()
    settings = read_options(benchmark.settings, arguments, name=benchmark.name, about=benchmark.question)
    settings.folder, settings.results, settings.flag, settings.pin = given.folder, given.results, given.flag, given.pin
    settings.wanted_build = given.wanted_build
    return settings


def write_summary(reports: Sequence[Report], command: str, folder: Path) -> None:
    machine, versions = describe_machine(), describe_versions()
    date = time.strftime("%Y-%m-%d")
    memory = int(str(machine["memory_mib"])) / 1024
    lines = [
        f"# Measured on {date}",
        "",
        f"`{command}`, on {machine['cores']} cores of {machine['model']}, {memory:.0f} GiB of memory, {machine['kernel']};"
        f" Python {versions['python']}, trio {versions['trio']}, commit {versions['commit']}, nsqd's core: {reports[0].core}.",
        "",
    ]
    for report in reports:
        lines += markdown_table(report)
    path = folder / f"summary-{date}.md"
    replace_file(path, "\n".join(lines).rstrip() + "\n")
    print(f"written to {path.name}")
