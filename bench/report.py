"""Rows, the table they make, and the result file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final, Generic, Self, TypeVar

from bench.machine import describe_machine, describe_versions
from bench.settings import Settings
from bench.work import Work

SettingsT = TypeVar("SettingsT", bound=Settings)

HEADINGS: Final = ("what", "unit", "median", "min", "max", "compared with", "median", "ratio", "demanded", "", "note")


@dataclass(frozen=True)
class Demand:
    """A demand on the ratio, or, if there is nothing to compare with, on the median."""

    limit: float
    is_minimum: bool = False

    def accepts(self, value: float) -> bool:
        return value >= self.limit if self.is_minimum else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.is_minimum else '≤'} {self.limit:g}"


def at_least(limit: float) -> Demand:
    return Demand(limit, is_minimum=True)


def at_most(limit: float) -> Demand:
    return Demand(limit)


@dataclass(frozen=True)
class Row:
    name: str
    unit: str
    values: tuple[float, ...]
    demand: Demand | None = None
    other: str = ""  # the other side of the comparison
    other_values: tuple[float, ...] = ()  # one for each of `values`, run by run
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Return the median of the ratios run by run, as runs next to each other share the machine's state."""
        pairs = zip(self.values, self.other_values, strict=bool(self.other_values))
        ratios = [mine / theirs for mine, theirs in pairs if theirs]
        return median(ratios) if ratios else None

    @property
    def is_met(self) -> bool | None:
        if self.demand is None:
            return None
        return self.demand.accepts(median(self.values) if self.ratio is None else self.ratio)

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "missed"}[self.is_met]

    def beside(self, other: str, values: tuple[float, ...]) -> Self:
        return replace(self, other=other, other_values=values, note="")

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            self.unit,
            figure(median(self.values)),
            figure(min(self.values)),
            figure(max(self.values)),
            self.other,
            figure(median(self.other_values)) if self.other_values else "",
            "" if self.ratio is None else f"{self.ratio:.2f}",
            "" if self.demand is None else str(self.demand),
            self.verdict,
            self.note,
        )

    def described(self) -> dict[str, object]:
        return {
            "name": self.name,
            "unit": self.unit,
            "median": median(self.values),
            "values": self.values,
            "compared_with": self.other or None,
            "other_values": self.other_values or None,
            "ratio": self.ratio,
            "demanded": None if self.demand is None else str(self.demand),
            "met": self.is_met,
            "note": self.note or None,
        }


@dataclass(frozen=True)
class Report:
    name: str
    question: str
    rows: Sequence[Row]
    command: str
    seconds: float
    settings: Mapping[str, object]
    core: str  # the core of the nsqd that was measured


def print_and_write(report: Report, settings: Settings) -> None:
    print_table(report)
    write_result(report, settings.results)


@dataclass(frozen=True)
class Benchmark(Generic[SettingsT]):
    name: str
    question: str
    settings: type[SettingsT]
    run: Callable[[SettingsT, Work], list[Row]]
    at_most: float  # minutes
    publish: Callable[[Report, SettingsT], None] = print_and_write
    instead: Callable[[SettingsT], bool] = lambda _: False  # does something else than measure, if asked to


def figure(value: float) -> str:
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.1f}"


def print_table(report: Report) -> None:
    cells = [HEADINGS, *(row.cells() for row in report.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    kept = [at for at, width in enumerate(widths) if width > len(HEADINGS[at]) or any(row[at] for row in cells[1:])]
    print(f"\n{report.question}  (nsqd's core: {report.core}, {report.seconds:.0f} s)")
    for row in cells:
        print(
            "  ".join(
                row[at].ljust(widths[at]) if at in (0, 1, 5, 10) else row[at].rjust(widths[at]) for at in kept
            ).rstrip()
        )


def markdown_table(report: Report) -> list[str]:
    lines = [f"**{report.name}**: {report.question}", ""]
    lines += [
        "| " + " | ".join(HEADINGS) + " |",
        "| --- | --- |" + " ---: |" * 3 + " --- |" + " ---: |" * 2 + " --- | --- |",
    ]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in report.rows]
    return [*lines, ""]


def write_result(
    report: Report, folder: Path, path: Path | None = None, more: Mapping[str, object] | None = None
) -> Path:
    """Write the result file: into the folder under the benchmark's name, or to a path. `more` comes before the rows."""
    path = path or folder / f"{report.name}-{time.strftime('%Y-%m-%d')}.json"
    shown = {key: value for key, value in report.settings.items() if not isinstance(value, Path)}
    content = {
        "name": report.name,
        "question": report.question,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(report.seconds, 1),
        "command": report.command,
        "settings": shown,
        "core": report.core,
        "machine": describe_machine(),
        "versions": describe_versions(),
        **(more or {}),
        "rows": [row.described() for row in report.rows],
    }
    replace_file(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {os.path.relpath(path)}")
    return path


def replace_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
