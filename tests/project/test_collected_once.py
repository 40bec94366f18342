"""xdist's workers are forks of one process that has collected (tests/support/collected_once.py), and report like others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.nested import with_plugins
from tests.support.process import ROOT, eventually

Run = Callable[..., pytest.RunResult]

WHO = """
import os, pathlib, pytest

with open("imports", "a") as file:
    print(os.getpid(), file=file)

def note(it):
    with open("runs", "a") as file:
        print(os.getpid(), it, file=file)
"""
BOTH = """
@pytest.mark.parametrize("number", range(2))
def test_it(number, tmp_path, worker_id):
    assert os.environ["PYTEST_XDIST_WORKER"] == worker_id
    assert f"popen-{worker_id}" in tmp_path.parts
    assert os.read(0, 1) == b""
    print("said", worker_id)
    note(worker_id)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    with_plugins(monkeypatch, "xdist.plugin")
    monkeypatch.delenv("NSQ_REAL_STARTS", raising=False)
    # In a new folder, Hypothesis takes a second to find out what it needs to know of Unicode.
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".hypothesis"))
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}\naddopts = --import-mode=importlib\nfilterwarnings = error")

    def run(text: str, conftest: str = "") -> pytest.RunResult:
        pytester.makeconftest(f'pytest_plugins = ["tests.support.collected_once"]\n{conftest}')
        pytester.makepyfile(WHO + text)
        return pytester.runpytest_subprocess("--numprocesses=2", "--dist=load", "-rA")

    return run


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_tests_are_collected_once_and_run_in_each_worker(run: Run, pytester: pytest.Pytester) -> None:
    """What a fixture says or takes long for, and a test that fails, are reported, too, and nothing else of fixtures."""
    count = """
def pytest_runtest_logreport(report):
    if hasattr(report, "node"):
        took = "long" if report.duration >= 0.05 else ""
        print("reported", report.nodeid.rpartition("::")[2], report.when, took)
"""
    others = """
import time
@pytest.fixture
def says():
    yield
    print("good bye")
@pytest.fixture
def slow():
    time.sleep(0.1)
@pytest.fixture
def fails():
    yield
    assert "torn" == "down"
@pytest.mark.parametrize("number", range(20))
def test_quick(number): pass
def test_says(says): pass
def test_slow(slow): pass
def test_torn(fails): pass
def test_fails():
    one = 1
    assert one == 2
"""
    done = run(BOTH.replace("range(2)", "range(8)") + others, count)  # of so many, each worker gets four first
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(passed=31, failed=1, errors=1)
    collector = lines(pytester.path / "imports")
    workers = [line.split() for line in lines(pytester.path / "runs")]
    assert len(collector) == 1
    assert {name for _, name in workers} == {"gw0", "gw1"}
    assert len({pid for pid, _ in workers} | {*collector}) == 3
    done.stdout.fnmatch_lines_random(["said gw0", "said gw1", "*assert 1 == 2*"])

    told = [it.partition("reported ")[2] for it in done.outlines if "reported " in it]
    reported = [it.removesuffix("long").strip() for it in told]
    # On a busy machine, to do nothing may take long, too.
    quick = [it for it in told if it.startswith("test_quick") and not ("call" not in it and it.endswith("long"))]
    of_quick = Counter(it.split()[1] for it in quick)
    assert of_quick["call"] == 20
    assert max(of_quick["setup"], of_quick["teardown"]) <= 2, "pytest prints something before each worker's first test"
    assert {"test_says teardown", "test_slow setup", "test_torn teardown"} <= {*reported}
    done.stdout.fnmatch_lines_random(["good bye", "*assert 'torn' == 'down'*"])


def test_what_is_wrong_while_collecting_is_reported_as_by_workers_that_collect(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import warnings\nwarnings.simplefilter('default')\nwarnings.warn('careful')\nimport missing\n"
    done = run(text)
    done.stdout.fnmatch_lines(["*No module named 'missing'*", "*UserWarning: careful*"])
    monkeypatch.setenv("NSQ_REAL_STARTS", "1")
    real = run(text)
    assert done.ret == real.ret
    assert done.parseoutcomes() == real.parseoutcomes()


def test_a_worker_that_crashes_is_replaced_by_another_fork(run: Run, pytester: pytest.Pytester) -> None:
    done = run("@pytest.mark.parametrize('number', range(8))\ndef test_it(number):\n    number != 1 or os._exit(1)\n")
    done.assert_outcomes(passed=7, failed=1)
    done.stdout.fnmatch_lines(["*crashed while running*"])
    assert len(lines(pytester.path / "imports")) == 1


def test_threads_that_wait_in_a_pool_do_not_keep_a_worker_from_ending(run: Run, pytester: pytest.Pytester) -> None:
    text = """
import atexit
from concurrent.futures import ThreadPoolExecutor
POOL = ThreadPoolExecutor(1)
def test_it():
    POOL.submit(int).result()
    atexit.register(note, "ends")
"""
    run(text).assert_outcomes(passed=1)
    assert noted(pytester.path) == ["ends"]


def test_if_the_collector_ends_too_early_each_worker_collects_for_itself(run: Run, pytester: pytest.Pytester) -> None:
    end = """
import os
def pytest_collection(session):
    if getattr(session.config, "workerinput", {}).get("workerid") == "collector":
        os._exit(1)
"""
    done = run(BOTH, end)
    done.assert_outcomes(passed=2)
    assert len(lines(pytester.path / "imports")) == 2


def test_with_real_starts_each_worker_collects_for_itself(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQ_REAL_STARTS", "1")
    run(BOTH).assert_outcomes(passed=2)
    assert len(lines(pytester.path / "imports")) == 2


TEARING_DOWN = """
import time

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)

@pytest.fixture
def torn_down():
    yield
    note("begins")
    wait_for("go")
    note("ends")

def test_it(torn_down):
    note("runs")
    wait_for("never")
"""


@contextmanager
def under_way(pytester: pytest.Pytester, text: str, conftest: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run pytest in a process group of its own, as a shell does."""
    pytester.makeconftest(f'pytest_plugins = ["tests.support.collected_once"]\n{conftest}')
    pytester.makepyfile(WHO + text)
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "--numprocesses=2"]
    process = subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def noted(folder: Path) -> list[str]:
    return [line.split()[1] for line in lines(folder / "runs")] if (folder / "runs").exists() else []


def test_after_ctrl_c_a_test_is_torn_down(run: Run, pytester: pytest.Pytester) -> None:
    with under_way(pytester, TEARING_DOWN) as process:
        eventually(lambda: noted(pytester.path) == ["runs"])
        os.killpg(process.pid, signal.SIGINT)
        eventually(lambda: noted(pytester.path) == ["runs", "begins"])
        (pytester.path / "go").touch()
        assert process.wait(30) == pytest.ExitCode.INTERRUPTED
        assert noted(pytester.path) == ["runs", "begins", "ends"]


def test_nothing_is_left_when_pytest_is_killed_while_tests_are_collected(run: Run, pytester: pytest.Pytester) -> None:
    collects = "import time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
    with under_way(pytester, collects + "def test_it(): note('runs')\n") as process:
        eventually((pytester.path / "imports").exists)
        process.kill()
        process.wait()
        (pytester.path / "go").touch()
        eventually(lambda: not is_there(process.pid))
    assert noted(pytester.path) == []


def is_there(group: int) -> bool:
    """Return whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
