"""scripts/test-flakes runs what it says, goes on where it was stopped, and lists what has failed."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import flakes
from scripts.flakes import Result, Run, plan, read, run, summary
from tests.support.distribution import shuffled
from tests.support.nested import with_plugins

CONFTEST = "def pytest_addoption(parser):\n    parser.addoption('--shuffle')\n"
TESTS = "import os\ndef test_passes(): pass\ndef test_of_the_seed(): assert os.environ['PYTHONHASHSEED'] != '7'\n"


def test_a_busy_process_ends_when_the_command_was_killed() -> None:
    ends = "import os, subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', sys.argv[1], str(os.getpid())])"
    subprocess.run([sys.executable, "-c", ends, flakes._SPIN], stdout=subprocess.PIPE, timeout=30, check=True)


def test_of_ten_runs_four_are_alone_and_six_beside_busy_processes() -> None:
    runs = [plan(number, seed=1) for number in range(10)]
    assert sorted(it.busy for it in runs) == [0, 0, 0, 0, 2, 2, 2, 2, 6, 6]
    assert {it.workers for it in runs} == {1, 3}
    assert len({it.seed for it in runs}) == 10


@pytest.mark.parametrize(("seed", "failed"), [(7, ["test_it.py::test_of_the_seed"]), (8, [])])
def test_a_run_has_a_seed_and_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, failed: list[str]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    monkeypatch.setattr(flakes, "ROOT", tmp_path)
    monkeypatch.setattr(flakes, "_SPIN", "import signal; signal.pause()")  # the plan says how busy it is, not this run
    with_plugins(monkeypatch, "xdist.plugin")
    result = run(Run(0, seed, busy=1, workers=1), ["."])
    assert result == Result(0, seed, 1, 1, result.seconds, int(bool(failed)), failed, "", "", ["."])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Have runs recorded instead of made; the second one fails."""
    done: list[Run] = []

    def record(it: Run, arguments: Any, part: flakes.Part) -> Result:
        done.append(it)
        failed = ["tests/test_a.py::test_b"] if it.number == 1 else []
        of_run = (it.number, it.seed, it.busy, it.workers, 60.0, int(bool(failed)), failed)
        return Result(*of_run, "abc", "abc", list(arguments), str(part))

    monkeypatch.setattr(flakes, "run", record)
    monkeypatch.setattr(flakes, "commit_now", lambda *_paths: "abc")
    return done


def test_it_goes_on_where_it_was_stopped(tmp_path: Path, ran: list[Run]) -> None:
    results = f"--results={tmp_path / 'results'}"
    assert flakes.main(["1", results, "--seed=5"]) == 0
    assert flakes.main(["3", results, "--seed=9"]) == 1
    assert [(it.number, it.seed) for it in ran] == [(0, 5), (1, 6), (2, 7)]
    assert [it.failed for it in read(tmp_path / "results")] == [[], ["tests/test_a.py::test_b"], []]


def test_parts_that_run_at_the_same_time_leave_those_that_want_to_be_alone(tmp_path: Path, ran: list[Run]) -> None:
    results = f"--results={tmp_path / 'results'}"
    for part in ("2/3", "1/3", "3/3"):
        flakes.main(["10", results, f"--part={part}"])
    assert [it.number for it in ran] == [1, 4, 0, 3, 2, 5]
    assert all(it.seed == it.number + 1 for it in ran), "whichever part was the first to end a run"
    assert all(it.busy for it in ran)
    assert [it.part for it in read(tmp_path / "results")] == ["2/3", "2/3", "1/3", "1/3", "3/3", "3/3"]
    flakes.main(["10", results])
    assert [(it.number, it.busy) for it in ran[6:]] == [(6, 0), (7, 0), (8, 0), (9, 0)]


@pytest.mark.parametrize("part", ["0/3", "4/3", "2", "a/b"])
def test_a_part_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], ran: list[Run], part: str) -> None:
    with pytest.raises(SystemExit):
        flakes.main(["10", f"--part={part}"])
    assert f"{part} is not like 2/3" in capsys.readouterr().err
    assert ran == []


@pytest.mark.parametrize(("commit", "arguments"), [("def", []), ("abc", ["tests/e2e/test_tls.py"])])
def test_runs_of_something_else_are_not_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ran: list[Run],
    commit: str,
    arguments: list[str],
) -> None:
    results = f"--results={tmp_path / 'results'}"
    flakes.main(["1", results])
    monkeypatch.setattr(flakes, "commit_now", lambda *_paths: commit)
    assert flakes.main(["2", results, *arguments]) == flakes.OTHER_RUNS
    assert len(ran) == 1
    assert "has runs of tests of what commit abc made; name another file with --results" in capsys.readouterr().err


def test_a_mended_test_is_no_other_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flakes, "ROOT", tmp_path)
    product, test = tmp_path / "nsqd/broker.py", tmp_path / "tests/test_broker.py"

    def commit() -> str:
        changes = ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=m"]
        for change in changes:
            subprocess.run(["git", *change], cwd=tmp_path, check=True)
        return flakes.commit_now()

    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for path in (product, test):
        path.parent.mkdir()
        path.write_text("1\n")
    first = commit()
    test.write_text("2\n")
    second = commit()
    assert second != first == flakes.commit_now(*flakes.PRODUCT)
    product.write_text("2\n")
    assert flakes.commit_now(*flakes.PRODUCT) == f"{first}+"
    assert commit() == flakes.commit_now(*flakes.PRODUCT) != first


def test_the_summary_names_runs_and_tests() -> None:
    bad = Result(1, 6, 2, 3, 700.4, 1, ["tests/test_a.py::test_b"], "abc", "abc", ["tests"])
    assert summary(
        [replace(bad, number=0, workers=1, status=0, failed=[]), bad, replace(bad, status=3, failed=[])]
    ) == (
        "run 1: seed 6, 1 worker beside 2 busy processes, 700 s, abc: passed\n"
        "run 2: seed 6, 3 workers beside 2 busy processes, 700 s, abc: 1 failed\n"
        "run 2: seed 6, 3 workers beside 2 busy processes, 700 s, abc: went wrong, status 3\n"
        "failed in 1 of 3: tests/test_a.py::test_b"
    )


def test_tests_are_shuffled_by_files_and_alike_for_the_same_seed() -> None:
    items: Any = [
        SimpleNamespace(path=Path(f"{file}.py"), name=f"{file}{test}") for file in "abcdef" for test in range(5)
    ]
    once, again = shuffled(items, 3), shuffled(items, 3)
    assert once == again != items
    assert sorted(it.name for it in once) == [it.name for it in items]
    assert len([it for it, following in itertools.pairwise(once) if it.path != following.path]) == 5
    assert shuffled(items, 4) != once
