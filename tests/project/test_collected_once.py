"""xdist's workers are forks of one process that has collected (tests/support/collected_once.py), and report like others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.nested import with_plugins
from tests.support.process import ROOT

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
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}\naddopts = --import-mode=importlib\nfilterwarnings = error")

    def run(text: str, conftest: str = "") -> pytest.RunResult:
        pytester.makeconftest(f'pytest_plugins = ["tests.support.collected_once"]\n{conftest}')
        pytester.makepyfile(WHO + text)
        return pytester.runpytest_subprocess("--numprocesses=2", "--dist=load", "-rA")

    return run


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_tests_are_collected_once_and_run_in_each_worker(run: Run, pytester: pytest.Pytester) -> None:
    done = run(BOTH)
    done.assert_outcomes(passed=2)
    collector = lines(pytester.path / "imports")
    workers = [line.split() for line in lines(pytester.path / "runs")]
    assert len(collector) == 1
    assert {name for _, name in workers} == {"gw0", "gw1"}
    assert len({pid for pid, _ in workers} | {*collector}) == 3
    done.stdout.fnmatch_lines_random(["said gw0", "said gw1"])


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


def test_a_test_that_fails_is_reported(run: Run) -> None:
    done = run("def test_it():\n    one = 1\n    assert one == 2\n")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*assert 1 == 2*"])


def test_a_worker_that_crashes_is_replaced_by_another_fork(run: Run, pytester: pytest.Pytester) -> None:
    done = run("@pytest.mark.parametrize('number', range(8))\ndef test_it(number):\n    number != 1 or os._exit(1)\n")
    done.assert_outcomes(passed=7, failed=1)
    done.stdout.fnmatch_lines(["*crashed while running*"])
    assert len(lines(pytester.path / "imports")) == 1


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
