"""Which failures a rerun forgives, and which it never does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from scripts.rerun import RARE_LOSSES, RERUN, why_not_rerun

ROOT: Final = Path(__file__).resolve().parents[2]
# A test that fails the first time and passes from then on.
FIRST_TIME_ONLY: Final = """
from pathlib import Path
def test_it():
    made = Path(__file__).with_suffix(".made")
    was_there = made.exists()
    made.touch()
    assert was_there
"""
# One that is skipped when it is run again.
THEN_SKIPPED: Final = """
import pytest
from pathlib import Path
def test_it():
    made = Path(__file__).with_suffix(".made")
    if made.exists():
        pytest.skip("not here")
    made.touch()
    assert False
"""
ODD_ID: Final = FIRST_TIME_ONLY.replace(
    "def test_it():", "import pytest\n@pytest.mark.parametrize('it', ['a [b]::c'])\ndef test_it(it):"
)
ALWAYS: Final = "def test_it(): assert False\n"
NEVER: Final = "def test_it(): pass\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("__init__.py", "rerun.py", "rerun.txt"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "code", "status", "said"),
    [
        ("tests/e2e/test_a.py", NEVER, 0, "1 passed"),
        (
            "tests/e2e/test_a.py",
            FIRST_TIME_ONLY,
            0,
            "failed in the full run, passed alone:\ntests/e2e/test_a.py::test_it\n",
        ),
        ("tests/e2e/test_a.py", ODD_ID, 0, "passed alone:\ntests/e2e/test_a.py::test_it[a [b]::c]\n"),
        (
            "tests/e2e/test_a.py",
            THEN_SKIPPED,
            1,
            "== skipped when rerun, which is no pass:\ntests/e2e/test_a.py::test_it\n",
        ),
        ("tests/e2e/test_a.py", ALWAYS, 1, "1 failed"),
        ("tests/e2e/test_a.py", "import missing\n", 2, "1 error"),
        ("tests/nsqd/test_a.py", FIRST_TIME_ONLY, 1, "== not rerun: a failure of tests/nsqd/test_a.py::test_it stands"),
        ("tests/e2e/test_kill9.py", FIRST_TIME_ONLY, 1, "== not rerun: a failure of"),
    ],
)
def test_a_run(tree: Path, name: str, code: str, status: int, said: str) -> None:
    path = tree / name
    path.parent.mkdir(parents=True)
    path.write_text(code)
    command = [sys.executable, "scripts/rerun.py", "--", "tests"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout
    assert said in done.stdout


def test_a_test_whose_worker_crashed_is_named_although_xdist_has_repeated_it(tree: Path) -> None:
    path = tree / "tests/e2e/test_a.py"
    path.parent.mkdir(parents=True)
    path.write_text(FIRST_TIME_ONLY.replace("assert was_there", "was_there or __import__('os')._exit(1)"))
    command = [sys.executable, "scripts/rerun.py", "-p", "xdist", "--", "--numprocesses=1", "tests"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "crashed" in done.stdout
    assert done.stdout.endswith("failed in the full run, passed alone:\ntests/e2e/test_a.py::test_it\n")


def test_four_failures_are_not_an_accident() -> None:
    failed = [f"tests/e2e/test_{it}.py::test_it" for it in "abcd"]
    assert why_not_rerun(failed[:3]) is None
    assert why_not_rerun(failed) == "4 tests failed, more than 3"


def test_what_looks_for_rare_losses_is_there() -> None:
    assert all((ROOT / it).is_file() for it in RARE_LOSSES)


def test_what_may_be_rerun_is_there() -> None:
    assert [it for it in RERUN if not (ROOT / it).exists()] == []
