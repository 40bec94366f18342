"""Run pytest, then rerun alone the few tests that failed while the machine was busy with all the others.

    python scripts/rerun.py [pytest's options for both runs] -- [options and paths for the first run only]

A test of real processes shares two cores with hundreds of others, so a single one that times out says little about the
code. A test that does not depend on time, or that looks for rare losses, is never rerun. See decision 23.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

MOST: Final = 3  # more failures than that are not an accident
TESTS_FAILED: Final = 1  # pytest's exit status; any other one means that the run itself went wrong
_MORE: Final = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
RERUN: Final = (
    *(f"tests/{it}/" for it in ("browser", "docs", "e2e", "project", "spark")),
    *(it for it in _MORE if not it.startswith("#")),
)
# These look for a message that is lost or doubled once in a thousand runs.
RARE_LOSSES: Final = (
    *(f"tests/e2e/test_{it}.py" for it in ("keyed_publishes", "kill9", "moving_nodes")),
    "tests/nsqtools/whole/test_to_file.py",
    *(f"tests/spark/test_{it}.py" for it in ("kill9", "nsqd_kills")),
)
_FILE: Final = "NSQ_TEST_OUTCOME"  # the environment variable that names the file which pytest writes at its end


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    failed: list[str]  # also what failed once and passed later in the same run
    skipped: list[str]


def main(arguments: list[str]) -> int:
    separator = arguments.index("--")
    of_both, of_the_first = arguments[:separator], arguments[separator + 1 :]
    first = _run([*of_both, *of_the_first])
    if first.status != TESTS_FAILED:
        return first.status
    if reason := why_not_rerun(first.failed):
        print(f"== not rerun: {reason}", flush=True)
        return first.status
    print("== rerunning alone:", *first.failed, sep="\n", flush=True)
    alone = _run([*of_both, *first.failed])
    if alone.status:
        return alone.status
    if alone.skipped:
        print("== skipped when rerun, which is no pass:", *alone.skipped, sep="\n", flush=True)
        return TESTS_FAILED
    print("== FLAKY, to be mended: failed in the full run, passed alone:", *first.failed, sep="\n", flush=True)
    return 0


def why_not_rerun(failed: list[str]) -> str | None:
    if not failed:
        return "pytest has not recorded what failed"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed, more than {MOST}"
    firm = [it for it in failed if it.startswith(RARE_LOSSES) or not it.startswith(RERUN)]
    return f"a failure of {firm[0]} stands, however rare" if firm else None


def _run(arguments: list[str]) -> Outcome:
    safe_path = ["-P"] if sys.flags.safe_path else []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "outcome.json"
        command = [sys.executable, *safe_path, "-m", "pytest", "-p", "scripts.rerun", *arguments]
        status = subprocess.run(command, env={**os.environ, _FILE: str(file)}).returncode
        recorded = json.loads(file.read_text()) if file.exists() else {"failed": [], "skipped": []}
    return Outcome(status, **recorded)


# In pytest, of which this is a plugin. Its own cache forgets a test whose worker crashed, as xdist repeats that at once.


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's workers report to the process that has started them
        config.pluginmanager.register(Recorder(Path(os.environ[_FILE])))


class Recorder:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: set[str] = set()
        self._skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._record(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._record(report)

    def _record(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps({"failed": sorted(self._failed), "skipped": sorted(self._skipped)}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
