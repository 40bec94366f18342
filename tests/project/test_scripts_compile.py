"""`scripts/compile`: what it needs, and that two of them, or one in the background, are in nobody's way.

What is compiled, and which core runs, is in `test_compiled.py`.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.project.checkout import LIMIT, copy_scripts, executable, run
from tests.support.process import eventually

NOTHING_TO_COMPILE_WITH: Final = 3
# One that has no pip of its own, as Debian's. It makes no environment, but notes that it was asked for one.
WITHOUT_PIP: Final = """#!/bin/sh
case "$*" in
-) exec cat >/dev/null ;; # whether there is a C compiler
*"import pip"*) exit 1 ;;
"-m venv "*) echo "$*" >&2; exit 1 ;;
*) exec {python} "$@" ;;
esac
"""
# One that does not make the environment either, but tries to take the lock that another scripts/compile would take.
TRIES_THE_LOCK: Final = """#!/bin/sh
case "$*" in
-) exec cat >/dev/null ;;
*"import pip"*) exit 1 ;;
"-m venv "*) {python} - <<'END'; exit 1 ;;
import fcntl
try:
    fcntl.flock(open("setup.py"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    raise SystemExit("another one would have to wait")
END
*) exec {python} "$@" ;;
esac
"""
# One that compiles until somebody ends it, in a process of a process, as pip's compiler is one.
COMPILES_FOR_EVER: Final = """#!/bin/sh
case "$*" in
-) exec cat >/dev/null ;;
*"import pip"*) exit 1 ;;
"-m venv "*) (touch "$COMPILES"; sleep 600); exit 1 ;;
*) exec {python} "$@" ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a checkout of the scripts and of the folders that are compiled, which are empty."""
    tree = copy_scripts(tmp_path / "tree")
    for folder in ("common", "nsqclient", "nsqd", "nsqlookupd"):
        (tree / folder).mkdir()
    return tree


def test_without_a_c_compiler_the_status_says_so(tree: Path) -> None:
    status, lines = run(tree / "scripts/compile", CC="no-such-compiler -O2")
    assert (status, lines) == (NOTHING_TO_COMPILE_WITH, ["core: not compiled, no C compiler: no-such-compiler"])


def test_the_environment_for_the_compiled_core_is_made_by_a_python_without_pip(tree: Path, tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3", WITHOUT_PIP)
    _, lines = run(tree / "scripts/compile", PYTHON=str(python))
    assert lines[-1] == "-m venv --clear .venv-compiled"


def test_two_that_compile_at_once_are_kept_apart_without_the_command_flock(tree: Path, tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for path in Path(folder).iterdir():
            if path.name != "flock" and not (commands / path.name).is_symlink():
                (commands / path.name).symlink_to(path)
    python = executable(tmp_path / "python3", TRIES_THE_LOCK)
    _, lines = run(tree / "scripts/compile", PYTHON=str(python), PATH=str(commands))
    assert lines[-1] == "another one would have to wait"


def test_a_second_start_does_not_wait_to_compile_what_is_being_compiled(tree: Path, tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3", WITHOUT_PIP)
    with open(tree / "setup.py") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, lines = run(tree / "scripts/compile", "--aside", PYTHON=str(python))
    assert (status, lines) == (0, ["core: pure Python for now; it is still being compiled in the background"])


def test_the_command_that_each_start_names_ends_all_that_compiles_in_the_background(tree: Path, tmp_path: Path) -> None:
    compiles = tmp_path / "compiles"
    python = executable(tmp_path / "bin/python3", COMPILES_FOR_EVER)
    aside = partial(run, tree / "scripts/compile", "--aside", PYTHON=str(python), COMPILES=str(compiles))
    status, (first,) = aside()
    found = re.search(r"; stop it with (kill -- -(\d+)) \(", first)
    assert found, first
    assert status == 0
    try:
        eventually(compiles.exists, LIMIT)
        _, (second,) = aside()
        assert (
            second
            == f"core: pure Python for now; it is still being compiled in the background; stop it with {found[1]}"
        )
        subprocess.run(["sh", "-c", found[1]], check=True)
        eventually(lambda: can_lock(tree / "setup.py"), LIMIT)  # all of them had it open, so the last one has ended
    finally:
        with suppress(ProcessLookupError):
            os.killpg(int(found[2]), signal.SIGKILL)
    assert not (tree / ".compiling").exists()


def test_a_group_that_has_ended_is_not_named_to_be_stopped(tree: Path, tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3", WITHOUT_PIP)
    ended = subprocess.Popen(["true"], process_group=0)
    ended.wait()
    (tree / ".compiling").write_text(f"{ended.pid}\n")  # as kill -9 leaves it
    with open(tree / "setup.py") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _, (line,) = run(tree / "scripts/compile", "--aside", PYTHON=str(python))
    assert line == "core: pure Python for now; it is still being compiled in the background"


def can_lock(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
