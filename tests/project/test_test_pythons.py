"""scripts/test-pythons finds Pythons, gives each an environment of its own, and says how it went."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
# A Python that installs nothing. Its tests fail if their name says so.
STUB: Final = """#!/bin/sh
case "$*" in
  -V) echo "Python $(basename "$0")" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pytest "*) echo "ran: $*"; case "$*" in *failing*) exit 1 ;; esac ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with the script, Python 3.12 on the path, and Python 3.13 among those of pyenv."""
    for name in ("scripts/test-pythons", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("path/python3.12", "pyenv/versions/3.13.0/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    broken = tmp_path / "path" / "python3.13"  # as pyenv has it for versions that are not chosen
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    return tmp_path


def run(tree: Path, versions: str, *arguments: str) -> tuple[int, list[str]]:
    path = f"{tree / 'path'}:{os.environ['PATH']}"
    done = subprocess.run(
        [tree / "scripts" / "test-pythons", *arguments],
        env={"PATH": path, "PYENV_ROOT": str(tree / "pyenv"), "NSQ_PYTHONS": versions},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_each_python_that_is_here_runs_the_quick_tests(tree: Path) -> None:
    status, lines = run(tree, "3.12 3.13 3.99")
    assert (status, lines[-1]) == (0, "passed on: 3.12 3.13; failed on: none; not here: 3.99")
    ran = [line for line in lines if line.startswith("ran: ")]
    assert [line.endswith("-m not (process or spark or browser or slow)") for line in ran] == [True, True]
    assert {path.name for path in tree.glob(".venv-*")} == {".venv-3.12", ".venv-3.13"}
    assert "installing" not in "".join(run(tree, "3.12")[1])


def test_a_failure_on_one_of_them_fails_the_run(tree: Path) -> None:
    assert run(tree, "3.12", "failing")[0] == 1


def test_it_does_not_pass_where_none_of_them_is(tree: Path) -> None:
    assert run(tree, "3.99") == (1, ["passed on: none; failed on: none; not here: 3.99"])
