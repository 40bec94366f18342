"""Which failures a rerun forgives, and which it never does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from scripts.rerun import RARE_LOSSES, why_not_rerun

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
ALWAYS: Final = "def test_it(): assert False\n"
NEVER: Final = "def test_it(): pass\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/rerun.py", tmp_path / "scripts")
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
        ("tests/e2e/test_a.py", ALWAYS, 1, "1 failed"),
        ("tests/e2e/test_a.py", "import missing\n", 2, "1 error"),
        ("tests/unit/test_a.py", FIRST_TIME_ONLY, 1, "== not rerun: a failure of tests/unit/test_a.py::test_it stands"),
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


def test_four_failures_are_not_an_accident() -> None:
    failed = [f"tests/e2e/test_{it}.py::test_it" for it in "abcd"]
    assert why_not_rerun(failed[:3]) is None
    assert why_not_rerun(failed) == "4 tests failed, more than 3"


def test_what_looks_for_rare_losses_is_there() -> None:
    assert all((ROOT / it).is_file() for it in RARE_LOSSES)
