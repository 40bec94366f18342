"""Which process gets which tests: those that compute on one side, those that wait on the other."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from tests.support.distribution import BROWSER, OWN_JVMS, ROW, SESSION, WHEELS, place_of, scope_of
from tests.support.nested import with_plugins
from tests.support.process import ROOT

FILES = ("tests/e2e/test_waits.py", "tests/spark/test_computes.py", "tests/nsqd/test_one.py", "tests/nsqd/test_two.py")
PASSED = re.compile(r"\[(gw\d)\] \[ *\d+%\] PASSED (\S+)::")
TUTORIALS = "tests/docs/test_commands.py::test_a_newcomer_s_first_hour"


def test_a_file_stays_together_and_what_takes_minutes_does_not() -> None:
    assert scope_of("tests/e2e/test_waits.py::test_a") == scope_of("tests/e2e/test_waits.py::test_b")
    assert scope_of(TUTORIALS) == TUTORIALS
    pages = [f"tests/docs/test_commands.py::test_commands_of[{page}]" for page in ("docs/README", "docs/how-to/spark")]
    assert scope_of(pages[0]) != scope_of(pages[1])


def test_all_tests_that_share_a_spark_session_are_one_group_and_come_first() -> None:
    assert scope_of("tests/spark/test_sink.py::test_a") == scope_of("tests/spark/test_stream.py::test_b") == SESSION
    assert scope_of("tests/spark/test_cluster.py::test_a") == "tests/spark/test_cluster.py"
    assert place_of(SESSION) < place_of(TUTORIALS) < place_of("tests/spark/test_cluster.py")


def test_all_tests_of_the_browser_are_one_group_and_the_first_at_the_far_end() -> None:
    assert scope_of("tests/browser/test_live.py::test_a") == scope_of("tests/browser/test_look.py::test_b") == BROWSER
    assert place_of(BROWSER) > place_of("tests/soak/test_soak.py")


def test_all_tests_that_install_our_wheels_are_one_group_beside_those_that_wait() -> None:
    files = [it for it in ROOT.glob("tests/**/test_*.py") if re.search(r"[( ]pure: Installed", it.read_text("utf-8"))]
    assert {scope_of(f"{it.relative_to(ROOT)}::test_a") for it in files} == {WHEELS}
    assert len(files) == 2
    assert place_of(WHEELS) > place_of("tests/docs/test_site.py")


def test_whoever_starts_a_jvm_says_why_and_shares_no_session() -> None:
    for file in OWN_JVMS:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert "pytest.mark.own_jvm(" in text, file
        assert "spark: SparkSession" not in text, file


def test_the_row_goes_from_those_that_compute_to_those_that_wait() -> None:
    row = (
        SESSION,
        TUTORIALS,
        "tests/spark/test_cluster.py",
        "tests/model/test_computes.py",
        "tests/project/test_guard.py",
        "tests/project/test_a_short_one.py",
        *FILES[2:],
        "tests/nsqpipe/test_a_short_one.py",
        "tests/pyspark_nsq/tables/test_iceberg_destination.py",
        "tests/docs/test_commands.py::test_commands_of[docs/README]",
        FILES[0],
        "tests/simulation/test_waits.py",
    )
    assert sorted({*row}, key=place_of) == [*row]


def test_what_starts_processes_stands_together_but_not_by_folder() -> None:
    files = [f"tests/{package}/whole/test_{it}.py" for package in ("nsqadmin", "nsqd", "nsqjobs") for it in "abcdefgh"]
    assert {place_of(it)[0] for it in files} == {place_of(FILES[0])[0]}
    row = sorted(files, key=place_of)
    assert row != files
    folders = [it.split("/")[1] for it in row]
    assert max(len([*same]) for _, same in groupby(folders)) <= 4


def test_what_the_row_names_is_there() -> None:
    for begin in {*ROW} - {SESSION, BROWSER}:
        assert any(ROOT.glob(f"{begin.partition('::')[0].rstrip('/')}*")), begin
    file, _, test = TUTORIALS.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


def test_one_process_begins_at_the_near_end_and_all_others_at_the_far_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_plugins(monkeypatch, "xdist.plugin")
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}\naddopts = --import-mode=importlib")
    pytester.makeconftest("from tests.conftest import pytest_xdist_make_scheduler")
    for file in FILES:
        path = pytester.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_it(): pass\n")
    done = pytester.runpytest_subprocess("--numprocesses=3", "--dist=loadfile", "--verbose")
    done.assert_outcomes(passed=4)
    begun = dict(reversed(PASSED.findall(done.stdout.str())))
    assert {*begun.values()} == {FILES[0], FILES[1], FILES[3]}
