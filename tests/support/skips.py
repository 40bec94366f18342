"""What a run has skipped: a list at its end, and in CI a comparison with what may be skipped there.

A test that is skipped for want of a program says nothing about the code. On your machine that is your choice, so the run
passes and lists it; CI has to have everything, so there the run fails unless `tests/skips.txt` lists exactly these skips.
`scripts/test` names the part of that file by `--skips`; a run of some tests has no such list.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

import pytest

NOT_AS_LISTED: Final = 10  # the exit status, also if tests have failed besides
ALLOWED: Final = Path(__file__).parents[1] / "skips.txt"


class Skip(NamedTuple):
    file: str
    reason: str


class Allowed(NamedTuple):
    file: str
    reason: str  # a pattern, as for file names
    on_some_machines: bool = False

    def covers(self, skip: Skip) -> bool:
        return self.file == skip.file and fnmatchcase(skip.reason, self.reason)


def allowed(part: str, text: str) -> list[Allowed]:
    """Return one part of the file. A line `[pure]` begins a part; others are `file: reason`, with `?` if some machines
    skip it and others do not.
    """
    found: dict[str, list[Allowed]] = {}
    current = ""
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        if line.startswith("["):
            current = line.strip("[]")
            found[current] = []
        else:
            file, _, reason = line.removeprefix("? ").partition(": ")
            found[current].append(Allowed(file, reason, on_some_machines=line.startswith("? ")))
    return found[part]


def complaints(skipped: Iterable[Skip], may_be: Sequence[Allowed]) -> list[str]:
    is_skipped = sorted(set(skipped))
    too_many = [it for it in is_skipped if not any(row.covers(it) for row in may_be)]
    gone = [row for row in may_be if not row.on_some_machines and not any(map(row.covers, is_skipped))]
    return [
        *(f"skipped, which CI does not allow: {it.file}: {it.reason}" for it in too_many),
        *(f"not skipped any more, strike it out: {row.file}: {row.reason}" for row in gone),
    ]


class SkipReport:
    """The plugin; under xdist it stands in the process that starts the others, to which they report."""

    def __init__(self, part: str | None) -> None:
        self._part = part
        self._skipped: Counter[Skip] = Counter()
        self._complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._record(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._record(report)

    def _record(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            assert isinstance(report.longrepr, tuple), report.longrepr
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self._skipped[Skip(report.nodeid.partition("::")[0], reason)] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._part is not None and os.environ.get("CI"):
            may_be = allowed(self._part, ALLOWED.read_text(encoding="utf-8"))
            self._complaints = complaints(self._skipped, may_be)
            if self._complaints and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                session.exitstatus = NOT_AS_LISTED

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after everything that others have to say
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        yield
        if self._skipped:
            terminalreporter.section("skipped")
        by_reason: Counter[str] = Counter()
        for skip, count in self._skipped.items():
            by_reason[skip.reason] += count
        for reason, count in by_reason.most_common():
            terminalreporter.line(f"{count:5} {reason}")
        for line in self._complaints:
            terminalreporter.line(line, red=True)
