"""The first run: `scripts/setup`, `scripts/run-broker` and `scripts/bring-tools`.

Bad input gets one clear line, and an exit status that is not 0. `scripts/test-door` tries the good days.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

import pytest

from tests.project.checkout import CANNOT, LIMIT, copy_scripts, executable, run, started

# A Python that says it is old, and one without ensurepip, as Debian has without python3-venv.
TOO_OLD: Final = '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit\nexit 1\n'
WITHOUT_VENV: Final = '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec {python} "$@"\n'
DAEMON: Final = '#!/bin/sh\nPYTHONPATH={root}:{root}/common exec {python} -P -m nsqd "$@"\n'


def header_of(script: Path) -> list[str]:
    """Return the comment at the top of a script, below its first line."""
    lines = script.read_text().splitlines()[1:]
    return [line.removeprefix("#").strip() for line in takewhile(lambda it: it.startswith("#"), lines)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a checkout of the scripts alone, without .venv."""
    return copy_scripts(tmp_path / "tree")


@pytest.fixture
def installed(tree: Path) -> Path:
    """Return one in which scripts/setup was run."""
    shutil.copy(tree / "pyproject.toml", executable(tree / ".venv/bin/nsqd", DAEMON).parents[1] / ".installed-")
    executable(tree / ".venv/bin/python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    return tree


@pytest.fixture
def read_only(tree: Path) -> Iterator[Path]:
    """Return one that we cannot write to, not even as root, to whom permissions do not apply."""
    if os.getuid() == 0:
        mount = ["mount", "--bind", "-o", "ro", str(tree), str(tree)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("root without the right to mount")
        yield tree
        subprocess.run(["umount", str(tree)], check=True)
    else:
        tree.chmod(0o555)
        yield tree
        tree.chmod(0o755)


@pytest.mark.parametrize("script", ["setup", "test", "test-quick", "test-compiled"])
def test_help_says_what_a_script_does_and_installs_nothing(script: str, tree: Path) -> None:
    answer = subprocess.run(
        [f"scripts/{script}", "--help"], cwd=tree, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert answer.stdout.splitlines() == header_of(tree / "scripts" / script)
    assert not (tree / ".venv").exists()


def test_setup_says_every_ten_seconds_how_far_it_is(tree: Path) -> None:
    executable(tree / ".venv/bin/python", '#!/bin/sh\necho "Collecting trio"\n[ "$1" = -c ] || /bin/sleep 1\n')
    executable(tree / "bin/sleep", "#!/bin/sh\n/bin/sleep 0.2\n")
    path = f"{tree / 'bin'}:{os.environ['PATH']}"
    done = started(tree / "scripts/setup", PATH=path)
    assert done.returncode == 0
    _, *ticks, _ = done.stderr.splitlines()
    assert ticks
    assert all(re.fullmatch(r"setup: \d+ s so far: Collecting trio", line) for line in ticks)


def test_the_help_of_the_demo_installs_nothing(tree: Path) -> None:
    done = started(tree / "scripts/demo", "--help")
    assert (done.returncode, done.stdout.splitlines()) == (0, header_of(tree / "scripts/demo"))
    assert not (tree / ".venv").exists()


def test_setup_says_what_takes_so_long_and_only_then(tree: Path) -> None:
    executable(tree / ".venv/bin/python", '#!/bin/sh\necho "$@"\n')  # installs nothing
    done = started(tree / "scripts/setup")
    assert done.returncode == 0
    before, after = done.stderr.splitlines()
    assert before == "setup: installing into .venv; the first time takes half a minute, see .venv/install.log"
    assert after.startswith("setup: installed in ")
    log = (tree / ".venv/install.log").read_text()
    assert "pip install" in log
    assert "--quiet" not in log, "pip tells the log what it is doing"
    assert started(tree / "scripts/setup").stderr == ""


def test_an_unknown_extra_is_named_with_those_that_there_are(tree: Path) -> None:
    status, (line,) = run(tree / "scripts/setup", "dev,sparc")
    assert status == CANNOT
    assert line.startswith("setup: no extra is called sparc; there are ")
    assert " dev, " in line
    assert not (tree / ".venv").exists()


SYSTEM: Final = Path("/usr/bin/python3")
HAS_ALL: Final = "import ensurepip, os, sysconfig, venv; os.stat(sysconfig.get_path('include') + '/Python.h')"


def version_of_system() -> str:
    """Return the version of the system's Python, or "" if it can't make everything, or isn't there."""
    asked = ["/bin/sh", "-c", f'{SYSTEM} -c "$1"', "sh", f"{HAS_ALL}; import sys; print(sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def chosen(tree: Path, slow_version: str, **environment: str) -> str:
    """Return which Python is chosen where python3 answers with its version if it is not optimized."""
    python = executable(tree / "bin/python3", f"#!/bin/sh\necho '{slow_version}'\n")
    path = f"{python.parent}:{os.environ['PATH']}"
    return started(tree / "scripts/which-python", PATH=path, **environment).stdout.strip()


def test_the_system_s_python_is_chosen_before_one_of_its_version_that_is_not_optimized(tree: Path) -> None:
    same = version_of_system()
    assert chosen(tree, slow_version=same or "(3, 11)") == (str(SYSTEM) if same else "python3")
    assert chosen(tree, slow_version="(3, 4)") == "python3"
    assert chosen(tree, slow_version="") == "python3"
    assert chosen(tree, slow_version=same or "(3, 11)", PYTHON="python3.99") == "python3.99"


@pytest.mark.parametrize("script", ["setup", "run-broker"])
def test_a_python_that_is_too_old_is_refused_with_its_version(script: str, tree: Path, tmp_path: Path) -> None:
    old = executable(tmp_path / "bin/python3", TOO_OLD)
    status, lines = run(tree / "scripts" / script, PYTHON=str(old))
    assert (status, lines[-1]) == (
        CANNOT,
        "setup: Python 3.9.2 is too old, Python 3.11 or newer is needed: name one with PYTHON=",
    )
    assert len(lines) == 1


def test_where_there_is_no_python_it_says_which_it_looked_for(tree: Path) -> None:
    status, (line,) = run(tree / "scripts/setup", PYTHON="no-such-python")
    assert status == CANNOT
    assert line.startswith("setup: there is no no-such-python: install Python 3.11 or newer")


def test_a_python_that_can_make_no_environments_asks_for_the_package(tree: Path, tmp_path: Path) -> None:
    python = executable(tmp_path / "bin/python3", WITHOUT_VENV)
    status, lines = run(tree / "scripts/setup", PYTHON=str(python))
    assert status == CANNOT
    assert "install python3-venv" in lines[-1]


def test_a_port_that_is_taken_is_named(installed: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, lines = run(installed / "scripts/run-broker", f"--tcp-address={address}", NSQ_COMPILE="0")
    assert status == 1
    (line,) = (it for it in lines if " INFO: " not in it)
    assert line.endswith(f"listen tcp {address}: bind: address already in use")


def test_a_checkout_that_cannot_be_written_to_is_named(read_only: Path) -> None:
    status, lines = run(read_only / "scripts/setup")
    assert (status, lines[-1]) == (
        CANNOT,
        f"setup: cannot write to {read_only}/.venv: use a checkout in a folder of your own",
    )


def test_a_broker_that_cannot_write_its_messages_asks_for_another_folder(read_only: Path) -> None:
    status, lines = run(read_only / "scripts/run-broker")
    assert (status, lines) == (
        CANNOT,
        [f"run-broker: cannot write to {read_only}/data: name another folder with NSQD_DATA_PATH="],
    )


@pytest.mark.parametrize("flag", ["--help", "-h", "--version", "-version"])
def test_a_question_to_the_broker_makes_no_folder_and_compiles_nothing(flag: str, installed: Path) -> None:
    done = started(installed / "scripts/run-broker", flag)
    assert (done.returncode, "nsqd" in done.stdout + done.stderr) == (0, True)
    assert "compil" not in done.stderr
    assert not (installed / "data").exists()


def test_a_broker_that_is_given_its_folder_makes_no_other(installed: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("a file")
    status, lines = run(installed / "scripts/run-broker", f"--data-path={own}", NSQ_COMPILE="0")
    assert (status, str(own) in lines[-1]) == (1, True)
    assert not (installed / "data").exists()


def test_without_a_network_it_says_that_no_index_can_be_reached(installed: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        index = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
    nowhere = {"PIP_INDEX_URL": index, "PIP_RETRIES": "1", "PIP_CONFIG_FILE": os.devnull}
    status, lines = run(installed / "scripts/setup", "admin", **nowhere)
    assert status == CANNOT
    first, *ticks, last = lines
    assert first.startswith("setup: installing into .venv, with admin")
    assert all(" s so far: " in line for line in ticks)
    assert last.startswith("setup: pip could not install this tree: no package index can be reached")


def test_tools_that_may_not_be_installed_are_named_one_line_each(tree: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "cut", "dirname", "env", "id", "sed", "tr"):
        (programs / name).symlink_to(str(shutil.which(name)))
    status, lines = run(tree / "scripts/bring-tools", PATH=str(programs), PYTHON=sys.executable)
    assert status == 0
    spark = "tools: no java (Debian: default-jre-headless), so the tests of this are skipped: all tests that need Spark"
    assert spark in lines
    assert [it for it in lines if not it.startswith("tools: no ")] == []
