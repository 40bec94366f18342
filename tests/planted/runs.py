"""Runs suites against copies of the sources that have a bug each, and says which suite has found what."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.planted.mutants import TESTS, Mutant
from tests.planted.planting import changed
from tests.planted.table import SUITES, Bug
from tests.support.process import ROOT

LIMIT: Final = 1200.0  # seconds for a suite
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
_HANGS: Final = (-signal.SIGALRM, -signal.SIGPROF)  # tests/support/hangs.py
_PASSED, _TESTS_FAILED, _INTERRUPTED = 0, 1, 2  # pytest's exit statuses; the others mean that it ran nothing


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    suite: str
    arguments: tuple[str, ...]  # of pytest
    bug: Bug | None  # None: this suite has to pass, because one that fails anyway finds nothing


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    suite: str
    verdict: str  # found, missed, hung, or broken: it could not be tried
    seconds: float
    by: str  # the test that has found it, or why it could not be tried

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.suite


def tasks_of_table(bugs: Sequence[Bug]) -> list[Task]:
    """Return what to run: each suite without a bug first, then each bug with the suites that have to find it."""
    suites = [suite for suite in SUITES if any(suite in bug.suites for bug in bugs)]
    whole = [Task("nothing", suite, SUITES[suite], None) for suite in suites]
    return whole + [Task(bug.name, suite, SUITES[suite], bug) for bug in bugs for suite in bug.suites]


def tasks_of_mutants(mutants: Sequence[Mutant]) -> list[Task]:
    whole = [Task("nothing", f"tests of {it}", TESTS[it], None) for it in sorted({it.package for it in mutants})]
    return whole + [Task(it.bug.name, f"tests of {it.package}", it.tests, it.bug) for it in mutants]


def run_all(tasks: Sequence[Task], *, jobs: int, tell: Callable[[Result], None]) -> None:
    """Run all of them, so many at a time, each in a copy of the sources."""
    waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    telling = threading.Lock()

    def work(_: int) -> None:
        with _copy() as folder:
            while True:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                result = run(task, folder)
                with telling:
                    tell(result)

    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(work, range(jobs)))  # raises what a thread has raised


def run(task: Task, folder: Path) -> Result:
    began = time.monotonic()
    with _bug_in(folder, task.bug):
        try:
            status, text = _pytest(task.arguments, folder)
        except subprocess.TimeoutExpired:
            return Result(task.name, task.suite, "hung", LIMIT, f"more than {LIMIT:.0f} s")
    seconds = time.monotonic() - began
    failed = _FAILED.findall(text)
    if status == _PASSED:
        return Result(task.name, task.suite, "missed", seconds, "")
    if status in (_TESTS_FAILED, _INTERRUPTED) and failed:
        return Result(task.name, task.suite, "found", seconds, failed[0])
    if status in _HANGS:
        return Result(task.name, task.suite, "found", seconds, "a test that hangs")
    return Result(task.name, task.suite, "broken", seconds, f"status {status}: {text.strip().splitlines()[-1:]}")


def _pytest(arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *arguments)
    environ = {**os.environ, "CI": "", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            text, _ = process.communicate(timeout=LIMIT)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # with the daemons of its tests
            raise
    return process.returncode, text


@contextmanager
def _copy() -> Iterator[Path]:
    """Make a folder with what git knows of here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        for file in listed.split("\0"):
            if file and (ROOT / file).is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, folder / file, follow_symlinks=False)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        yield folder


@contextmanager
def _bug_in(folder: Path, bug: Bug | None) -> Iterator[None]:
    if bug is None:
        yield
        return
    path = folder / bug.file
    source = path.read_text(encoding="utf-8")
    path.write_text(changed(source, bug), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(source, encoding="utf-8")
