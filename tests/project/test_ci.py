"""CI is the README's test command in a fresh environment, and what it skips is listed."""

from __future__ import annotations

import re

import pytest

from tests.support.nested import with_plugins
from tests.support.process import ROOT
from tests.support.skips import ALLOWED, NOT_AS_LISTED, Allowed, Skip, allowed, complaints

README = (ROOT / "README.md").read_text(encoding="utf-8")
LIST = """
[pure] # one part
tests/test_one.py: no engine
? tests/test_one.py: elsewhere: it needs * # two colons
[compiled]
"""


def commands_of(script: str) -> list[str]:
    """Return the lines of a shell script that do something."""
    return [line for line in script.splitlines() if line and not line.startswith("#")]


def test_ci_runs_the_readme_s_command_and_nothing_else() -> None:
    assert re.search(r"^```sh\nscripts/test\n```$", README, re.MULTILINE), "the command that a contributor is given"
    assert commands_of((ROOT / ".ci/run").read_text(encoding="utf-8")) == [
        "set -eu",
        'cd "$(dirname "$0")/.."',
        'export CI="${CI:-true}"',
        "rm -rf .venv .venv-compiled",
        "exec scripts/test </dev/null",
    ]


@pytest.mark.parametrize(("part", "script"), [("pure", "test"), ("compiled", "test-compiled")])
def test_a_whole_run_compares_its_skips(part: str, script: str) -> None:
    text = (ROOT / "scripts" / script).read_text(encoding="utf-8")
    assert f" --skips={part} " in text
    for skip in allowed(part, ALLOWED.read_text(encoding="utf-8")):
        assert (ROOT / skip.file).is_file(), skip


def test_the_list_has_parts() -> None:
    one = Allowed("tests/test_one.py", "no engine")
    two = Allowed("tests/test_one.py", "elsewhere: it needs *", on_some_machines=True)
    assert allowed("pure", LIST) == [one, two]
    assert allowed("compiled", LIST) == []


def test_a_skip_that_is_not_listed_and_one_that_is_not_there_are_named() -> None:
    one, two = Skip("tests/test_one.py", "no engine"), Skip("tests/test_two.py", "no Java")
    assert complaints([one, two], [Allowed(*one), Allowed(*two)]) == []
    (unlisted,) = complaints([one, two], [Allowed(*one)])
    assert "tests/test_two.py: no Java" in unlisted
    (gone,) = complaints([two], [Allowed(*one), Allowed(*two)])
    assert "tests/test_one.py: no engine" in gone


def test_what_only_some_machines_skip_may_run_and_may_not() -> None:
    row = Allowed("tests/test_one.py", "no figures of *", on_some_machines=True)
    assert complaints([], [row]) == []
    assert complaints([Skip("tests/test_one.py", "no figures of CPython 3.15")], [row]) == []
    assert complaints([Skip("tests/test_two.py", "no figures of CPython 3.15")], [row]) != []


@pytest.mark.parametrize(("environment", "status"), [({}, 0), ({"CI": "true"}, NOT_AS_LISTED)])
def test_a_run_in_ci_fails_for_a_skip(
    environment: dict[str, str], status: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with_plugins(monkeypatch, "xdist.plugin")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    pytester.makeini(f"[pytest]\npythonpath = {ROOT} {ROOT}/common\naddopts = --import-mode=importlib")
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_configure")
    pytester.makepyfile("import pytest\n\ndef test_one(): pytest.skip('no Java')\n\ndef test_two(): pass")
    done = pytester.runpytest_subprocess("--skips=compiled", "--numprocesses=1")
    assert done.ret == status
    done.stdout.fnmatch_lines(["*    1 no Java", *(["skipped, which CI does not allow: *: no Java"] if status else [])])


def test_a_failure_does_not_hide_a_skip(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with_plugins(monkeypatch, "xdist.plugin")
    pytester.makeini(f"[pytest]\npythonpath = {ROOT} {ROOT}/common\naddopts = --import-mode=importlib")
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_configure")
    pytester.makepyfile("import pytest\n\ndef test_one(): pytest.skip('no Java')\n\ndef test_two(): assert False")
    assert pytester.runpytest_subprocess("--skips=compiled").ret == NOT_AS_LISTED
