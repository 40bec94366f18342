"""What `scripts/test-planted` does with its table: it runs, compares, and goes on where it was stopped."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.planted import __main__ as program
from tests.planted import mutants
from tests.planted.__main__ import complaints, read, summary, write
from tests.planted.mutants import Mutant, places_in
from tests.planted.planting import changed
from tests.planted.runs import Result, Task, run, tasks_of_mutants, tasks_of_table
from tests.planted.table import BUGS, Bug
from tests.support.process import ROOT

PRODUCT = "def double(number):\n    return number + number\n"
TESTS = """
from product import double

def test_nothing():
    pass

def test_three():
    assert double(3) == 6
"""
BUG = Bug("three times", "", "product.py", (("number + number", "number + number + number"),), ("tests",))
HARMLESS = Bug("the other way", "", "product.py", (("return number + number", "return 2 * number"),), ("tests",))
BROKEN = Bug("no Python", "", "product.py", (("return number + number", "return return"),), ("tests",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("product.py", PRODUCT), ("test_product.py", TESTS), ("conftest.py", "")):
        (tmp_path / name).write_text(text)
    return tmp_path


def tried(bug: Bug | None, folder: Path, *arguments: str) -> Result:
    return run(Task(bug.name if bug else "nothing", "tests", arguments or ("test_product.py",), bug), folder)


@pytest.mark.parametrize(
    ("bug", "verdict", "by"),
    [
        (BUG, "found", "test_product.py::test_three"),
        (HARMLESS, "missed", ""),
        (BROKEN, "found", "test_product.py"),
        (None, "missed", ""),
    ],
)
def test_a_suite_finds_a_bug_or_misses_it(folder: Path, bug: Bug | None, verdict: str, by: str) -> None:
    result = tried(bug, folder)
    assert (result.verdict, result.by) == (verdict, by)
    assert (folder / "product.py").read_text() == PRODUCT


@pytest.mark.parametrize("number", ["SIGALRM", "SIGPROF"])
def test_a_suite_that_a_limit_has_ended_has_found_the_bug(folder: Path, number: str) -> None:
    ended = f"import signal\n    signal.raise_signal(signal.{number})"
    result = tried(Bug("hangs", "", "product.py", (("return number + number", ended),), ()), folder)
    assert (result.verdict, result.by) == ("found", "a test that hangs")


def test_a_suite_that_is_not_there_has_found_nothing(folder: Path) -> None:
    assert tried(BUG, folder, "test_elsewhere.py").verdict == "broken"


def result(name: str, suite: str, verdict: str) -> Result:
    return Result(name, suite, verdict, 1.0, "a test")


@pytest.mark.parametrize(
    ("before", "now", "complaint"),
    [
        ("found", "missed", "a bug: kills does not find it any more"),
        ("missed", "missed", "a bug: kills does not find it"),
        ("missed", "broken", "a bug: kills could not be run: a test"),
    ],
)
def test_a_bug_of_the_table_that_nobody_finds_is_wrong(before: str, now: str, complaint: str) -> None:
    assert complaints([result("a bug", "kills", now)], [result("a bug", "kills", before)]) == [complaint]


def test_a_change_that_was_never_found_may_be_missed_again_and_one_that_was_may_not() -> None:
    missed = result("a change", "tests of nsqd", "missed")
    assert complaints([missed], [missed]) == []
    assert complaints([missed], [result("a change", "tests of nsqd", "found")]) == [
        "a change: tests of nsqd does not find it any more"
    ]


def test_a_suite_that_fails_without_a_bug_is_wrong() -> None:
    assert complaints([result("nothing", "kills", "missed")], []) == []
    assert complaints([result("nothing", "kills", "found")], []) == ["kills fails without any bug: a test"]


def test_results_are_kept_and_counted(tmp_path: Path) -> None:
    results = [result("a bug", "kills", "found"), result("a change", "tests of nsqd", "missed")]
    write(tmp_path / "results", results)
    assert list(read(tmp_path / "results").values()) == results
    assert summary(results) == (
        "bugs, each with a suite: 1 of 1 found, in 1 s by the median, 1 s at most\n"
        "mutants: 0 of 1 found, in 0 s by the median, 0 s at most"
    )


def test_what_has_a_result_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = BUGS[0]
    tasks = [(task.name, task.suite) for task in tasks_of_table([bug])]
    done = [Result(name, suite, "missed" if name == "nothing" else "found", 1.0, "") for name, suite in tasks[:-1]]
    write(tmp_path / "results", done)
    ran: list[Task] = []

    def run_all(tasks: list[Task], *, jobs: int, tell: object) -> None:
        for task in tasks:
            ran.append(task)
            assert callable(tell)
            tell(Result(task.name, task.suite, "missed", 2.0, ""))

    monkeypatch.setattr(program, "run_all", run_all)
    status = program.main(["--what", "bugs", "--only", bug.name, "--results", str(tmp_path / "results")])
    assert [(task.name, task.suite) for task in ran] == tasks[-1:]
    assert status == 1
    assert f"{tasks[-1][0]}: {tasks[-1][1]} does not find it" in capsys.readouterr().err


# Changes at random


def test_the_stored_changes_fit_and_are_changes() -> None:
    stored = mutants.stored()
    assert len(stored) == sum(mutants.DRAWN.values())
    for mutant in stored:
        source = (ROOT / mutant.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(changed(source, mutant.bug))) != ast.dump(ast.parse(source))
    assert len({task.name for task in tasks_of_mutants(stored)}) == len(stored) + len({"nothing"})
    assert all((ROOT / path.removeprefix("--ignore=")).exists() for mutant in stored for path in mutant.tests)


def test_the_same_seed_draws_the_same_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "DRAWN", {"nsqlookupd": 5})
    assert mutants.draw(7) == mutants.draw(7)
    assert mutants.draw(7) != mutants.draw(8)


def test_changes_are_stored_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "STORED", tmp_path / "stored")
    drawn = [Mutant("a.py", 'x = "it\'s"\n\tb\\n\n', "ü = 'a'\n"), Mutant("b.py", "x = 'it'\n", 'x = "\\t"\n')]
    mutants.store(drawn, 1)
    assert mutants.stored() == drawn


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("return a < b", ["return a <= b"]),
        ("return (a) and (b)", ["return (a) or (b)"]),
        ("return x + 'ü' - y", ["return x + 'ü' + y", "return x - 'ü' - y"]),
        ("return f'{a + 1}'", []),
        ("x: int = 1", ["x: int = 2"]),
        ("log.info('%d', 7)", ["log.info('%d', 8)"]),
        ("raise ValueError(x)", ["pass"]),
        ("return not x", ["return (x)"]),
        ("return True", ["return False"]),
    ],
)
def test_what_can_be_changed_in_a_line(line: str, instead: list[str]) -> None:
    source = f"def f():\n    '''Docs: 1 < 2.'''\n    {line}\n"
    found = []
    for _, change in places_in(source):
        mutated = source[: change.start] + change.text + source[change.end :]
        found.append(mutated.splitlines()[-1].strip())
    assert sorted(found) == sorted(instead)
