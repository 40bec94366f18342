"""Bad input at the door: one clear line, and an exit status that is not 0. `scripts/test-door` tries the good days."""

from __future__ import annotations

import fcntl
import io
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, TextIO, cast

import pytest

from scripts.door import bases
from scripts.door.__main__ import table
from scripts.door.machines import Failed, Machine, Running
from scripts.door.visits import Phase, Visit
from tests.support.process import ROOT, eventually

LIMIT: Final = 120.0
CANNOT: Final = 2  # the machine, or what was asked for, has to change first
NOTHING_TO_COMPILE_WITH: Final = 3
# A Python that says it is old, and one without ensurepip, as Debian has without python3-venv.
TOO_OLD: Final = '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit\nexit 1\n'
WITHOUT_VENV: Final = '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec {python} "$@"\n'
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
DAEMON: Final = '#!/bin/sh\nPYTHONPATH={root}:{root}/common exec {python} -P -m nsqd "$@"\n'


def header_of(script: Path) -> list[str]:
    """Return the comment at the top of a script, below its first line."""
    lines = script.read_text().splitlines()[1:]
    return [line.removeprefix("#").strip() for line in takewhile(lambda it: it.startswith("#"), lines)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a checkout of the scripts alone, without .venv."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "scripts", tree / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tree / name)
    return tree


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


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(python=shlex.quote(sys.executable), root=ROOT) if "{python}" in text else text)
    path.chmod(0o755)
    return path


def run(*command: str | Path, **environment: str) -> tuple[int, list[str]]:
    """Return the exit status, and what was said on stderr. Nothing may be said on stdout."""
    done = started(*command, **environment)
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def started(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "NSQ", "CI", "PYTHON"))}
    return subprocess.run(
        command, env={**clean, "NSQ_APT": "no", **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("script", ["setup", "test", "test-quick", "test-compiled"])
def test_help_says_what_a_script_does_and_installs_nothing(script: str, tree: Path) -> None:
    answer = subprocess.run(
        [f"scripts/{script}", "--help"], cwd=tree, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert answer.stdout.splitlines() == header_of(tree / "scripts" / script)
    assert not (tree / ".venv").exists()


def test_an_unknown_extra_is_named_with_those_that_there_are(tree: Path) -> None:
    status, (line,) = run(tree / "scripts/setup", "dev,sparc")
    assert status == CANNOT
    assert line.startswith("setup: no extra is called sparc; there are ")
    assert " dev, " in line
    assert not (tree / ".venv").exists()


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


def test_without_a_c_compiler_the_status_says_so(tree: Path) -> None:
    status, lines = run(tree / "scripts/compile", CC="no-such-compiler -O2")
    assert (status, lines) == (NOTHING_TO_COMPILE_WITH, ["core: not compiled, no C compiler: no-such-compiler"])


def test_the_environment_for_the_compiled_core_is_made_by_a_python_without_pip(tree: Path, tmp_path: Path) -> None:
    for folder in ("common", "nsqclient", "nsqd", "nsqlookupd"):
        (tree / folder).mkdir()
    python = executable(tmp_path / "bin/python3", WITHOUT_PIP)
    _, lines = run(tree / "scripts/compile", PYTHON=str(python))
    assert lines[-1] == "-m venv --clear .venv-compiled"


def test_two_that_compile_at_once_are_kept_apart_without_the_command_flock(tree: Path, tmp_path: Path) -> None:
    for folder in ("common", "nsqclient", "nsqd", "nsqlookupd"):
        (tree / folder).mkdir()
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
    for folder in ("common", "nsqclient", "nsqd", "nsqlookupd"):
        (tree / folder).mkdir()
    python = executable(tmp_path / "bin/python3", WITHOUT_PIP)
    with open(tree / "setup.py") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, lines = run(tree / "scripts/compile", "--aside", PYTHON=str(python))
    assert (status, lines) == (0, ["core: pure Python for now; it is still being compiled in the background"])


def test_the_command_that_each_start_names_ends_all_that_compiles_in_the_background(tree: Path, tmp_path: Path) -> None:
    for folder in ("common", "nsqclient", "nsqd", "nsqlookupd"):
        (tree / folder).mkdir()
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
    for folder in ("common", "nsqclient", "nsqd", "nsqlookupd"):
        (tree / folder).mkdir()
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
    assert len(lines) == 2, "that it begins, and why it ends"
    assert lines[-1].startswith("setup: pip could not install this tree: no package index can be reached")


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


# scripts/test-door itself


def test_only_root_can_make_machines(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert bases.why_not() == "it takes root to make machines"


def test_what_is_missing_to_make_machines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "debootstrap" else name)
    assert bases.why_not() == "no debootstrap here: it takes Debian with the package debootstrap"


def test_without_root_or_debootstrap_there_is_one_line_and_status_2(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "env"):
        (programs / name).symlink_to(str(shutil.which(name)))
    status, lines = run(ROOT / "scripts/test-door", PATH=str(programs), PYTHON=sys.executable)
    assert (status, len(lines)) == (CANNOT, 1)
    assert lines[0].startswith("test-door: ")


def test_a_machine_gets_what_the_host_says_about_indexes_but_no_paths_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/certificates").touch()
    for name, value in (
        ("PIP_INDEX_URL", "https://index.example/simple"),
        ("PIP_CERT", "/etc/certificates"),
        ("PIP_FIND_LINKS", "/not/there"),
        ("https_proxy", "http://proxy.example:8080"),
        ("SECRET", "x"),
    ):
        monkeypatch.setenv(name, value)
    found = bases.environment(tmp_path)
    assert found["PIP_INDEX_URL"] == "https://index.example/simple"
    assert found["PIP_CERT"] == "/etc/certificates"
    assert found["https_proxy"] == "http://proxy.example:8080"
    assert found.keys().isdisjoint({"PIP_FIND_LINKS", "SECRET", "PATH", "HOME", "CI"})


class Host:
    """Stands for a machine, and runs the commands right here; `clone` and `scripts/test` are what the test says."""

    name = "host"
    user = "newcomer"
    root = Path("/")

    def __init__(self, folder: Path, suite: str) -> None:
        self.home = str(folder)
        executable(folder / "tests/scripts/test", f"#!/bin/sh\n{suite}\n")

    def run(self, command: str, log: TextIO) -> None:
        assert command.startswith("git clone ")

    def start(self, command: str, log: TextIO, *, cwd: str) -> Running:
        return Running(["sh", "-c", f"cd {cwd} && {command}"], self.name, log)


@pytest.mark.parametrize(
    ("suite", "of_phase", "last"),
    [
        ("echo '== checks: 7 s' >&2; echo '= 3 passed in 9s ='; exit 0", "", ("3 passed in 9s", False)),
        ("echo '== checks: 7 s' >&2; echo 'no luck'; exit 3", "", ("status 3: no luck", True)),
        ("echo '== checks: 7 s, exit status 3' >&2; echo '= 3 passed ='; exit 0", "exit status 3", ("3 passed", False)),
        (
            "echo '== checks: 7 s, exit status 3' >&2; exit 3",
            "exit status 3",
            ("status 3: == checks: 7 s, exit status 3", True),
        ),
    ],
)
def test_a_visit_tells_the_phases_of_the_suite_and_how_it_ended(
    suite: str, of_phase: str, last: tuple[str, bool], tmp_path: Path
) -> None:
    visit = Visit(cast(Machine, Host(tmp_path, suite)), io.StringIO(), "")
    with pytest.raises(Failed) if last[1] else nullcontext():
        visit.test()
    assert [(it.name, it.note, it.failed) for it in visit.phases] == [
        ("clone", "", False),
        ("checks", of_phase, bool(of_phase) and last[1]),
        ("scripts/test", *last),
    ]
    assert visit.phases[1].seconds == 7


def test_a_command_that_takes_too_long_has_failed() -> None:
    running = Running(["sleep", "60"], "host", io.StringIO())
    with pytest.raises(Failed, match=r"not done after 0 s"):
        running.wait(0.01)


def test_the_table_says_what_failed() -> None:
    said = table([Phase("user", "test", "clone", 1.26), Phase("user", "test", "tests", 0, "status 1", failed=True)])
    assert said.splitlines() == [
        "machine  step  phase  seconds",
        "user     test  clone      1.3",
        "user     test  tests           FAILED: status 1",
    ]
